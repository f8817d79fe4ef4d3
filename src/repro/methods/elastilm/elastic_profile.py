"""Elastic profiles: a decoder's unit order and its loss without each layer, measured or loaded.

Owns profiles, their file format, and the profiles and adapters committed to the repository. Must not know how
levels are derived from a profile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm import lora
from repro.methods.elastilm.lora import Lora
from repro.methods.elastilm.submodels import LayerSizes, Order
from repro.methods.elastilm.unit_importance import Measure, importance
from repro.models.analysis.layer_importance import loss, losses_without
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.origin import folders, to_install
from repro.models.checkpoints.safetensors_io import read_tensors, write_tensors
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain
from repro.records.record import content_hash

PROFILE = "profile.safetensors"


@dataclass(frozen=True)
class ElasticProfile:
    """Profile of a decoder on a corpus.

    Attributes:
        order: units and neurons, most important first.
        losses: mean next-token loss without each layer in turn, in nats.
        full_loss: mean next-token loss with all layers, in nats.
    """

    order: Order
    losses: tuple[float, ...]
    full_loss: float


class Parts(NamedTuple):
    """A folder with a checkpoint's profile and adapters, and its content hash."""

    folder: str
    digest: str

    def find(self) -> Path:
        """The folder on this machine; InputError if it is missing, or has another content."""
        folder = next((folder for folder in folders(self.folder) if folder.is_dir()), None)
        if folder is None:
            raise InputError(f"{self.folder} is not there{to_install(self.folder)}")
        if (content := digest(folder)) != self.digest:
            raise InputError(f"{folder} has digest {content}; {self.digest} is the project's")
        return folder


_SMOLLM2 = Parts(
    "assets/elastic/smollm2-135m", "e1e80432b40abe6e6ec3ce17e54ef8154b628d0f1284ffe6889e8a68a6791a3f"
)

COMMITTED: dict[str, Parts] = {
    "384ced1dc62b75febac5715bedb7c9630daf82421718cf5d92d352de71fa3ab9": _SMOLLM2,
    # Rounded to 8 and 4 bits (`round_to_nearest`); unit order and adapters are reused.
    "fc248ca0ea354c92b79ca63219dc0c29a7d516bb294f35fed17c060c61f295b1": _SMOLLM2,
    "ac97e99ed1523d768463b7ce120e9c3ef71d8ab30fbd9cd1b70f7ff891ef11fb": _SMOLLM2,
    "43c3cb1752d7d5bc1cb6d871dceebd1f7f82f1d728f6adf965c9d4020a82e5ff": Parts(
        "assets/elastic/qwen2.5-coder-0.5b",
        "5735e71dc5cf264086baf67cfefa6869ae1484ce2b057f47bd411a95ce9336aa",
    ),
}
"""Outputs of `training.elasticize` and `training.train_lora` by decoder `fingerprint`. The content hashes are
listed so that cell keys change with the files."""


def parts_digest() -> str:
    """Content hash of all committed profiles and adapters."""
    return content_hash(COMMITTED)


_last: dict[str, ElasticProfile] = {}


def fingerprint(decoder: Decoder) -> str:
    """Hash of a dense decoder: first row of the embedding and of every matrix, and non-default settings.

    Defaults are left out so that settings added later do not change existing hashes.
    """
    rows = [decoder.ends.embedding[0]]
    rows += [as_plain(linear).weight[0] for layer in decoder.resident_layers() for linear in layer.linears]
    content = f"{settings_text(decoder.config)} {_hash(row.float().cpu() for row in rows)}"
    return hashlib.sha256(content.encode()).hexdigest()


LATER = frozenset({"factors"})
"""Settings of nested ones that came after hashes were committed, which have all others."""


def settings_text(config: DecoderConfig) -> str:
    """The non-default settings of a decoder as `fingerprint` spells them."""
    changed = [
        (f.name, getattr(config, f.name)) for f in fields(config) if getattr(config, f.name) != f.default
    ]
    return f"[{', '.join(f'({name!r}, {_spell(value)})' for name, value in changed)}]"


def _spell(value: object) -> str:
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    members = [f for f in fields(value) if f.name not in LATER or getattr(value, f.name) != f.default]
    return f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in members)})"


def profile_decoder(decoder: Decoder, corpus: Sequence[Tensor], measure: Measure) -> ElasticProfile:
    """Profile a dense decoder on a corpus; the last profile is cached for use by several levels.

    Raises:
        InputError: the corpus is empty or has a sequence of fewer than two tokens; a linear is not dense.
    """
    key = f"{fingerprint(decoder)} {_hash(corpus)} {measure}"
    if key not in _last:
        order = importance(decoder, corpus, measure).order()
        profile = ElasticProfile(order, tuple(losses_without(decoder, corpus)), loss(decoder, corpus))
        _last.clear()
        _last[key] = profile
    return _last[key]


def save(profile: ElasticProfile, path: Path) -> None:
    """Write a profile to one file for `load`."""
    orders = {"units": profile.order.units, "neurons": profile.order.neurons}
    tensors = {name: torch.stack(order).to(torch.int32) for name, order in orders.items()}
    numbers = torch.tensor([*profile.losses, profile.full_loss], dtype=torch.float64)
    write_tensors(path, {**tensors, "losses": numbers}, {})


def load(path: Path) -> ElasticProfile:
    """Read a profile from a file; InputError if it is not a profile."""
    tensors = read_tensors(path)
    if set(tensors) != {"units", "neurons", "losses"}:
        raise InputError(f"{path} is no profile: it holds {', '.join(sorted(tensors)) or 'nothing'}")
    units, neurons = (tuple(tensors[name].to(torch.int64).unbind(0)) for name in ("units", "neurons"))
    *losses, full_loss = tensors["losses"].tolist()
    return ElasticProfile(Order(units, neurons), tuple(losses), full_loss)


def committed_folder(decoder: Decoder) -> Path | None:
    """The folder of this checkpoint's committed profile and adapters, or None.

    Raises:
        InputError: the folder is missing, or its digest differs from `COMMITTED`.
    """
    parts = COMMITTED.get(fingerprint(decoder))
    return parts and parts.find()


def committed_lora(folder: Path, system: str, level: float, sizes: LayerSizes, order: Order) -> Lora | None:
    """Committed adapters of one system's level; None if missing or made for other units or another order."""
    path = folder / lora_file(system, level)
    if not path.is_file():
        return None
    adapters = lora.load(path)
    return adapters if (adapters.sizes, adapters.order) == (sizes, order.digest) else None


def lora_file(system: str, level: float) -> str:
    """File name of a level's adapters."""
    return f"lora-{system}-{level:g}.safetensors"


def _hash(tensors: Iterable[Tensor]) -> str:
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(tensor.contiguous().numpy().tobytes() + b"|")
    return hasher.hexdigest()
