"""Recover the accuracy of an elastic model's level with LoRA adapters (ElastiLM 3.2), on task-agnostic data.

    REPRO_DATA=<folder> python -m workshop.training.train_lora --out assets/elastic/smollm2-135m --level 0.5
        --texts wikitext2_train,cnn_dailymail,bookcorpus

`--out` holds the profile that `elasticize.py` wrote; the adapters are written beside it. A killed run
continues with the same command. At full size, on a GPU: --device cuda --batch-tokens 16384 --at-once 4096
--minutes 1e9. Prints the line for `models/elastic_profile.COMMITTED` that makes runs use the folder with
these adapters.

Owns the order of the steps and the training record; the training itself is in `trainers`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from repro import data
from repro.core.errors import InputError
from repro.data.prompts import Prompt
from repro.methods.compression.pruning.elastic_levels import anchors_of, kept_at
from repro.models.elastic import elastic_profile, lora
from repro.models.elastic.elastic_profile import PROFILE, lora_file
from repro.models.elastic.submodels import reordered, submodel
from repro.models.transformer import weights
from repro.scenarios.accuracy import AccuracyScenario
from workshop.training.elasticize import ANCHORS, asked, noted
from workshop.training.texts import record
from workshop.training.texts.answers import Answer
from workshop.training.trainers.recovery import Adapters, RecoveryTrainer, answered, continued
from workshop.training.trainers.training import Schedule

SYSTEMS = ("elastilm", "llm_pruner")
PAPER = tuple(name for name in lora.MATRICES if name != "gate")  # 3.2 names q, k, v, o, up and down
HELDOUT = 0.05


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; defaults are the release's where the paper gives no value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--target", default="smollm2_135m", help="a name of conf/model (default %(default)s)")
    add("--out", type=Path, required=True, help="folder with the profile; the adapters go there")
    add("--system", choices=SYSTEMS, default="elastilm", help="whose sub-model (default %(default)s)")
    add("--level", type=float, default=0.5, help="share of the blocks' weights kept (default %(default)s)")
    add("--work", type=Path, default=Path(".cache/lora"), help="checkpoints (default %(default)s)")
    add("--dataset", default="alpaca", help="questions with reference answers (default %(default)s)")
    add("--rows", type=int, default=10**6, help="of it, at most; one in twenty is held out")
    add(
        "--texts",
        default="",
        help="more names of conf/dataset, by commas, whose texts are read as in pre-training",
    )
    add("--text-tokens", type=int, default=10**9, help="of each of these, at most; one in twenty is held out")
    add("--length", type=int, default=256, help="longest question and answer, and every text, in tokens")
    add("--rank", type=int, default=lora.RANK)
    add("--gate", action="store_true", help="adapters beside gates too, as in the release")
    add("--rate", type=float, default=1e-4, help="learning rate")
    add("--epochs", type=float, default=2.0, help="the schedule ends here, or with --minutes")
    add("--batch-tokens", type=int, default=2048, help="an update; the release has 64 answers")
    add("--at-once", type=int, default=512, help="tokens in one pass; memory grows with the square")
    add("--warmup", type=int, default=100, help="updates")
    add("--every", type=int, default=50, help="updates between checkpoints and held-out losses")
    add("--minutes", type=float, default=1e9, help="limit for the training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if not (args.out / PROFILE).is_file():
        raise InputError(f"out {args.out}: no {PROFILE} there; run workshop.training.elasticize first")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    return args


class Given(NamedTuple):
    """Training data, held-out data, and the digests of the rows by dataset."""

    trained: list[Answer]
    heldout: list[Answer]
    rows: dict[str, str]


class LoraTraining:
    """One run of the command: its sub-model, its questions and texts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.cell: AccuracyScenario = asked(args.target, [])
        self.bare = AutoTokenizer.from_pretrained(self.cell.folder)
        self.given = self.data()
        self.decoder = weights.load(self.cell.folder, "float32", packed=False, device=args.device)
        self.profile = elastic_profile.load(args.out / PROFILE)
        locked = anchors_of(self.profile.losses, ANCHORS) if args.system == "elastilm" else ()
        self.kept = kept_at(self.decoder.config, args.level, locked)
        self.file = args.out / lora_file(args.system, args.level)

    def data(self) -> Given:
        """Load all datasets and hold out the last twentieth of each."""
        given = Given([], [], {})
        for name in filter(None, [self.args.dataset, *self.args.texts.split(",")]):
            config = data.read_config(name)
            rows = data.load_rows(config, self.args.rows, self.cell.config.get("data_dir"))
            prompts = data.prompts(config, rows, self.cell.target.tokenizer)
            found = self.questions(prompts) if name == self.args.dataset else self.texts(prompts)
            count = max(1, round(HELDOUT * len(found)))
            given.trained.extend(found[:-count])
            given.heldout.extend(found[-count:])
            given.rows[name] = rows.digest
        return given

    def questions(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Prompts with their references as answers; only the answers are trained on."""
        references = [self.bare.encode(one.reference, add_special_tokens=False) for one in prompts]
        return answered(prompts, references, self.bare.eos_token_id, self.args.length)

    def texts(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Concatenated texts, cut into pieces; every token but a piece's first is trained on."""
        encoded = (self.bare.encode(one.text, add_special_tokens=False) for one in prompts)
        return continued(encoded, self.bare.eos_token_id, self.args.length, self.args.text_tokens)

    def train(self) -> dict[str, Any]:
        """Train and save the adapters; returns what the record says of it."""
        args = self.args
        sub = submodel(reordered(self.decoder, self.profile.order), self.kept)
        matrices = lora.MATRICES if args.gate else PAPER
        adapters = Adapters(sub, self.kept, matrices, args.rank, args.seed)
        tokens = self.tokens()
        schedule = Schedule(
            steps=max(1, round(args.epochs * tokens / args.batch_tokens)),
            tokens=args.batch_tokens,
            rate=args.rate,
            warmup=args.warmup,
            decay=1.0,
            weight_decay=0.01,
            seed=args.seed,
        )
        args.work.mkdir(parents=True, exist_ok=True)
        state = args.work / f"{args.system}-{args.level:g}.pt"
        adapted = lora.attached(sub, adapters.lora(self.kept, self.profile.order))
        trainer = RecoveryTrainer(adapters, adapted, schedule, args.at_once, state, args.device)
        before = trainer.heldout_loss(self.given.heldout) if not trainer.step else trainer.curve[0]["before"]

        def measure() -> dict[str, float]:
            lora.save(adapters.lora(self.kept, self.profile.order), self.file)  # a killed run leaves some
            return {
                "before": round(before, 4),
                "heldout_loss": round(trainer.heldout_loss(self.given.heldout), 4),
            }

        trainer.run(lambda: self.given.trained, args.minutes, args.every, measure)
        return {"curve": trainer.curve, "updates": trainer.step, "planned_updates": schedule.steps}

    def tokens(self) -> int:
        """Number of training tokens, questions included."""
        return sum(len(one.prompt) + len(one.tokens) for one in self.given.trained)

    def write(self, found: dict[str, Any]) -> None:
        """Write the training record beside the adapters."""
        args = self.args
        whole = {
            "command": record.command(args, "train_lora"),
            "commit": record.git_commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "target": {"name": self.cell.labels["target"], "digest": self.cell.target.digest},
            "adapters": {"file_bytes": self.file.stat().st_size, "sha256": record.sha256(self.file)},
            "true_ratio": round(self.kept.true_ratio(self.decoder.config), 4),
            "data": {
                "rows": self.given.rows,
                "trained": len(self.given.trained),
                "trained_tokens": self.tokens(),
                "heldout": len(self.given.heldout),
            },
            **found,
            "machine": record.machine(args),
            "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
        }
        self.file.with_suffix(".json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Train the adapters of one level."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    run = LoraTraining(args)
    run.write(run.train())
    print("For models/elastic_profile.COMMITTED:\n    " + noted(run.decoder, args.out, args.out.as_posix()))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
