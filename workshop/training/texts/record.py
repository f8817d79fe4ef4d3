"""Owns the training record: a draft's inputs and its results; no paths and no machine names."""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from workshop.training.texts import answers, prompts


def training_record(
    args: argparse.Namespace,
    work: Path,
    answered: list[prompts.Item],
    trained: dict[str, Any],
    results: dict[str, Any],
) -> dict[str, Any]:
    """Content of `training.json`; `answered` are the prompts that were trained on."""
    return {
        "command": command(args, "train_draft"),
        "commit": git_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "seed": args.seed,
        "target": {"name": args.target.name, **file_hashes(args.target)},
        "draft": {
            "target_layers": list(range(args.layers)),
            "mlp_width": args.width,
            "file_bytes": (args.out / "model.safetensors").stat().st_size,
            "sha256": sha256(args.out / "model.safetensors"),
        },
        "data": {
            "trained_on": prompts.describe(answered),
            "extra_prompts": [Path(text).name for text in args.prompts],
            "heldout": [Path(text).name for text in [args.heldout, *args.heldout_chat] if text],
            **answered_with(work),
        },
        "recipe": trained["recipe"],
        "curve": trained["curve"],
        "results": results,
        "seconds": {"generate": answers.seconds_spent(work), "train": trained["curve"][-1]["seconds"]},
        "machine": machine(args),
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
    }


def answered_with(work: Path) -> dict[str, Any]:
    """Counts and a hash of the answers in a work folder."""
    files = answers.shards(work)
    return {
        "answers": sum(len(answers.read_shard(path)) for path in files),
        "answer_tokens": answers.count_tokens(work),
        "shards": len(files),
        "shards_sha256": hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest(),
    }


def command(args: argparse.Namespace, script: str) -> str:
    """The command line, with paths reduced to their last part."""
    files = ("target", "out", "start", "work", "more", "code_root", "prompts", "heldout", "heldout_chat")
    given = [
        (name, Path(str(one)).name if name in files else one)
        for name, value in sorted(vars(args).items())
        for one in (value if isinstance(value, list) else [value])
        if one not in (None, "")
    ]
    options = [f"--{name.replace('_', '-')} {value}" for name, value in given]
    return " ".join([f"python -m workshop.training.{script}", *options])


def git_commit() -> str:
    """The commit of the scripts, or `none` outside a repository."""
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    return done.stdout.strip() or "none"


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hashes(folder: Path) -> dict[str, str]:
    """Hashes of a checkpoint's weights and its tokenizer."""
    wanted = [*sorted(folder.glob("*.safetensors")), folder / "tokenizer.json"]
    return {path.name: sha256(path) for path in wanted if path.exists()}


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """Kind of the machine; its name is never recorded."""
    kind = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine()
    return {"device": args.device, "kind": kind, "threads": args.threads}
