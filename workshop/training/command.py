"""Owns what the commands of this room share: options, the end of a wrong input, and the training record.

A record says what was trained from what, by which command at which commit; it names no paths and no machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import machine
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from repro.core.errors import InputError
from repro.core.version import version as product
from repro.models.checkpoints.wheels import sha256_of
from repro.records.record import write_atomically
from workshop.training.loop import Schedule, Text


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the command's docstring as it is written."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every training."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="where the result goes")
    add("--minutes", type=float, default=1e9, help="limit for the training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)


def add_resumed(parser: argparse.ArgumentParser, work: str, every: int) -> None:
    """Add the options of every training that a killed run continues."""
    add_common(parser)
    add = parser.add_argument
    add(
        "--work",
        type=Path,
        default=Path(work),
        help="what is generated, and checkpoints (default %(default)s)",
    )
    add("--every", type=int, default=every, help="updates between checkpoints and held-out figures")


def add_epochs(
    parser: argparse.ArgumentParser, rate: float, epochs: float, batch_tokens: int, warmup: int
) -> None:
    """Add the options of a schedule that ends with so many epochs; see `schedule_of`."""
    add = parser.add_argument
    add("--rate", type=float, default=rate, help="learning rate (default %(default)s)")
    add("--epochs", type=float, default=epochs, help="the schedule ends here, or with --minutes")
    add("--batch-tokens", type=int, default=batch_tokens, help="an update (default %(default)s)")
    add("--warmup", type=int, default=warmup, help="updates (default %(default)s)")


def schedule_of(args: argparse.Namespace, texts: Iterable[Text]) -> Schedule:
    """A schedule with as many updates as the epochs of these texts have batches."""
    steps = max(1, round(args.epochs * sum(text.size for text in texts) / args.batch_tokens))
    return Schedule(steps, args.rate, 0.01, args.seed, args.batch_tokens, args.warmup, decay=1.0)


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, after torch was given its threads; InputError for a device that this machine lacks."""
    args = parser.parse_args(argv)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    torch.set_num_threads(args.threads)
    return args


def run(main: Callable[[], None]) -> None:
    """Run a command; a wrong input ends it with one sentence."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")


def require_checkpoint(folder: Path, option: str) -> None:
    """InputError unless the folder that this option names holds a checkpoint."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{option} {folder}: no config.json there; give a folder as save_pretrained writes")


def open_model(folder: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A frozen checkpoint on the device, in evaluation mode."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device).eval().requires_grad_(False)


def command_of(args: argparse.Namespace, script: str) -> str:
    """The command line, with paths reduced to their last part and without options that say nothing."""
    words = [f"python -m workshop.training.{script}"]
    for name, value in sorted(vars(args).items()):
        for each in value if isinstance(value, list) else [value]:
            option = f"--{name.replace('_', '-')}"
            if each is True:
                words.append(option)
            elif each is not False and each not in (None, ""):
                words.append(f"{option} {each.name if isinstance(each, Path) else each}")
    return " ".join(words)


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def write_record(path: Path, args: argparse.Namespace, script: str, weights: Path, **found: Any) -> None:
    """Write the training record of the file `weights`; `found` are its target, data, recipe and results."""
    kind = torch.cuda.get_device_name() if args.device.startswith("cuda") else machine()
    record = {
        "command": command_of(args, script),
        "commit": product().commit or "none",
        "date": datetime.now(UTC).date().isoformat(),
        "weights": {"file_bytes": weights.stat().st_size, "sha256": sha256_of(weights)},
        **found,
        "machine": {"device": args.device, "kind": kind, "threads": args.threads},
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
    }
    write_json(path, record)


def checkpoint_hashes(folder: Path) -> dict[str, str]:
    """Name of a checkpoint, and hashes of its weights and its tokenizer."""
    files = [*sorted(folder.glob("*.safetensors")), folder / "tokenizer.json"]
    return {"name": folder.name} | {path.name: sha256_of(path) for path in files if path.exists()}
