"""Train LEVER's early-exit predictor (sec. 4.3) for a target, on the target's own answers.

    python -m workshop.training.train_predictor --target <folder> --draft <folder> --answers <shards> \\
        --out <folder>

The answers are shards as `train_draft.py` or `train_eagle.py` generate them. Each `--try NAME=VALUE` first
trains a predictor with one setting changed and records its results on held-out prompts. The last predictor
uses the command's settings and is saved. On a GPU add `--device cuda`.

Owns the order of the steps and the training record; the training itself is in `trainers.early_exit`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_tensors
from repro.models.drafting.early_exit import PredictorConfig
from repro.models.transformer import weights
from workshop.training.texts import answers, record
from workshop.training.trainers import draft, early_exit
from workshop.training.trainers.early_exit import Change, ExitPositions, Settings

SIZE_LIMIT = 3_000_000  # bytes of the committed file
PARTS = 10  # one part of the prompts is held out
TYPES: dict[str, type] = {field.name: type(field.default) for field in fields(Settings)}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of the committed predictor unless its record says otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder with config.json, safetensors and a tokenizer")
    add("--draft", type=Path, required=True, help="a draft that shares the target's embeddings")
    add("--answers", type=Path, required=True, help="folder with the target's answers in shards")
    add("--out", type=Path, required=True, help="where the predictor goes")
    add("--tokens", type=int, default=10**9, help="answer tokens to train on, at most")
    add(
        "--hidden",
        default="",
        metavar="L,L,..",
        help="layers whose rows lie beside the shards",
    )
    add("--width", type=int, default=8, help="candidates of the draft at a position, |C(u)|")
    for name, kind in TYPES.items():
        help_ = "see trainers.early_exit.Settings (default %(default)s)"
        add(f"--{name}", type=kind, default=getattr(Settings(), name), help=help_)
    add("--try", dest="tries", action="append", default=[], metavar="NAME=VALUE", help="one setting changed")
    add("--minutes", type=float, default=1e9, help="limit for training the predictor that is saved")
    add("--try-minutes", type=float, default=1e9, help="limit for training each other one")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    for folder in (args.target, args.draft):
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: no config.json there; give a folder as save_pretrained writes")
    if not answers.shards(args.answers):
        raise InputError(f"answers {args.answers}: no shards there; train_draft.py --phases harvest,generate")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    return args


def changed(settings: Settings, text: str) -> Settings:
    """The settings with `NAME=VALUE` applied; InputError for an unknown name or a value of another type."""
    name, _, value = text.partition("=")
    if name not in TYPES:
        raise InputError(f"try {text!r}: choose NAME from {', '.join(TYPES)}")
    try:
        return replace(settings, **{name: TYPES[name](value)})
    except ValueError as error:
        raise InputError(f"try {text!r}: {name} is {TYPES[name].__name__}") from error


def read(folder: Path) -> list[answers.Answer]:
    """All answers in a folder, in the order of the shards."""
    return [one for path in answers.shards(folder) for one in answers.read_shard(path)]


def split(made: list[answers.Answer], tokens: int) -> tuple[list[int], list[int]]:
    """Indices of answers to train on, about `tokens` tokens, and of held-out ones; split by prompt hash."""
    trained, heldout, used = list[int](), list[int](), 0
    for place, one in enumerate(made):
        digest = hashlib.sha256(one.prompt.numpy().tobytes()).digest()
        if digest[0] % PARTS == 0:
            heldout.append(place)
        elif used < tokens:
            trained.append(place)
            used += len(one.tokens)
    if not trained or not heldout:
        raise InputError(f"{len(trained)} answers to train on and {len(heldout)} held out: generate more")
    return trained, heldout


class PredictorTraining:
    """One run of the command: its answer positions, and the target's output projection."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.settings = Settings(**{name: getattr(args, name) for name in TYPES})
        self.others = {text: changed(self.settings, text) for text in args.tries}
        target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32)
        target = target.to(args.device).eval().requires_grad_(False)
        self.depth: int = target.config.num_hidden_layers
        self.wanted = sorted({one.layer for one in (self.settings, *self.others.values())})
        if not 0 < self.wanted[0] <= self.wanted[-1] < self.depth:
            raise InputError(f"layers {self.wanted}: a predictor looks after 1 to {self.depth - 1} layers")
        small = draft.load_draft(args.draft, target).to(args.device).eval()
        made = read(args.answers)
        hidden = self.hidden()
        self.parts = [[made[place] for place in part] for part in split(made, args.tokens)]
        self.trained, self.heldout = (
            self.rows(target, small, made, hidden, part) for part in split(made, args.tokens)
        )
        self.head = target.get_output_embeddings().weight.detach()

    def hidden(self) -> list[Tensor]:
        """The stored hidden states of each answer; empty without `--hidden`."""
        layers = self.kept_layers()
        missing = {*self.wanted, self.depth}.difference(layers)
        if layers and missing:
            raise InputError(f"hidden {self.args.hidden!r} lacks the layers {sorted(missing)}")
        paths = answers.shards(self.args.answers) if layers else []
        return [rows for path in paths for rows in answers.read_hidden(path)]

    def kept_layers(self) -> list[int]:
        """Layers whose hidden states are stored beside the shards."""
        return [int(layer) for layer in self.args.hidden.split(",") if layer]

    def rows(
        self,
        target: PreTrainedModel,
        small: PreTrainedModel,
        made: list[answers.Answer],
        hidden: list[Tensor],
        part: list[int],
    ) -> ExitPositions:
        """Positions of these answers, sorted by length to reduce padding."""
        order = sorted(part, key=lambda place: len(made[place].prompt) + len(made[place].tokens))
        chosen = [made[place] for place in order]
        candidates = early_exit.proposed(small, chosen, self.args.width)
        if hidden:
            layers = self.kept_layers()
            found = early_exit.kept(target, chosen, [hidden[place] for place in order], layers)
        else:
            found = early_exit.middle(target, chosen, [*self.wanted, self.depth])
        said = found.pop(self.depth)
        guesses = torch.cat([one.guesses for one in chosen]).to(self.args.device)
        return ExitPositions(found, said, guesses, candidates)

    def fit(self, settings: Settings, minutes: float) -> tuple[Change, dict[str, Any]]:
        """Train one predictor; returns it with the entry for the record."""
        begun = time.monotonic()
        change, losses = early_exit.train(self.trained, self.head, settings, minutes)
        tail = losses[-max(1, len(losses) // 10) :]
        found = {
            "updates": len(losses),
            "seconds": round(time.monotonic() - begun),
            "loss": round(sum(tail) / len(tail), 4),
            **early_exit.figures(change, self.heldout, self.head, settings),
        }
        print(f"{asdict(settings)}: {found}", flush=True)
        return change, found

    def write(self, change: Change, tries: dict[str, Any], result: dict[str, Any]) -> None:
        """Write the predictor's folder: configuration, fp16 tensors, training record."""
        out, settings = self.args.out, self.settings
        out.mkdir(parents=True, exist_ok=True)
        parts = {name: part.half().cpu().contiguous() for name, part in vars(change).items()}
        write_tensors(out / "update.safetensors", parts, {})
        vocab, hidden = self.head.shape
        config = PredictorConfig(
            target={"name": self.args.target.name, "digest": weights.digest(self.args.target)},
            layers=self.depth,
            layer=settings.layer,
            hidden=hidden,
            vocab=vocab,
            rank=len(change.inner),
            temperatures={"kd": settings.kd, "candidates": settings.candidates},
        )
        (out / "config.json").write_text(json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8")
        whole = self.record(tries, result)
        (out / "training.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")

    def record(self, tries: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Content of `training.json`; no paths and no machine names."""
        args, files = self.args, answers.shards(self.args.answers)
        update = args.out / "update.safetensors"
        size = update.stat().st_size
        if size > SIZE_LIMIT:
            raise InputError(f"predictor of {size} bytes: {SIZE_LIMIT} at most; lower --rank")
        return {
            "command": command(args),
            "commit": record.git_commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "target": {"name": args.target.name, **record.file_hashes(args.target)},
            "draft": {"name": args.draft.name, **record.file_hashes(args.draft)},
            "update": {"file_bytes": size, "sha256": record.sha256(update)},
            "data": {
                "shards": len(files),
                "shards_sha256": hashlib.sha256("".join(map(record.sha256, files)).encode()).hexdigest(),
                **described("trained", self.parts[0], self.trained),
                **described("heldout", self.parts[1], self.heldout),
            },
            "settings": asdict(self.settings),
            "tries": tries,
            "result": result,
            "machine": record.machine(args),
            "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
        }


def described(name: str, made: list[answers.Answer], rows: ExitPositions) -> dict[str, int]:
    """Number of answers and of positions in one part of the data."""
    return {f"{name}_answers": len(made), f"{name}_positions": len(rows)}


def command(args: argparse.Namespace) -> str:
    """The command line, with paths reduced to their last part."""
    words = ["python -m workshop.training.train_predictor"]
    for name, value in sorted(vars(args).items()):
        option = "try" if name == "tries" else name.replace("_", "-")
        given = value if isinstance(value, list) else [value]
        words += [f"--{option} {one.name if isinstance(one, Path) else one}" for one in given]
    return " ".join(words)


def main(argv: list[str] | None = None) -> None:
    """Train the `--try` predictors, then the one that is saved."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    run = PredictorTraining(args)
    tries = {text: run.fit(settings, args.try_minutes)[1] for text, settings in run.others.items()}
    if tries:  # the baseline of the tries has their time limit, not the saved predictor's
        tries["as saved"] = run.fit(run.settings, args.try_minutes)[1]
    change, result = run.fit(run.settings, args.minutes)
    run.write(change, tries, result)


if __name__ == "__main__":
    main()
