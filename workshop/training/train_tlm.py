"""Train the heads of ElastiLM's dual-head model (3.3): the score head first, then the decision head.

    REPRO_DATA=<folder> python -m workshop.training.train_tlm score --out assets/tlm/minilm
    REPRO_DATA=<folder> python -m workshop.training.train_tlm decision --out assets/tlm/minilm

Words are labelled by their surprisal under the target: those above the median of their text are retained.
Deviation: the paper uses GPT-4's labels of MeetingBank, `--labels microsoft/MeetingBank-LLMCompressed`.
Decisions are labelled by the elasticized target's own answers on MMLU-Pro. A killed run continues with the
same command; labels are stored in `--work` and are not part of the project. Each head is written to `--out`
with its record.

Prints the line for `models/trained_heads.COMMITTED` that makes runs use the folder with this head.

Owns the order of the steps and the training records; the training itself is in `decision_heads`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from repro import data
from repro.core.errors import InputError
from repro.methods.serving.score_head import Reading, ScoreHead
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.encoder_folder import open_encoder
from repro.models.checkpoints.safetensors_io import CONFIG
from repro.models.encoders import dual_head
from repro.models.encoders.dual_head import DualHead, HeadSettings
from repro.models.encoders.trained_heads import fingerprint, head_file
from repro.models.encoders.word_pieces import WordPieces, load_encoder
from repro.models.transformer import weights
from repro.records.record import content_hash
from workshop.training.decision_heads import decisions, heads, meeting, surprisal
from workshop.training.decision_heads.surprisal import Marked
from workshop.training.elasticize import asked
from workshop.training.texts import record
from workshop.training.trainers.training import Schedule

HELDOUT = 10  # every tenth text, every fifth question
HELDOUT_QUESTIONS = 5


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the defaults are those of the committed heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    both = argparse.ArgumentParser(add_help=False)
    add = both.add_argument
    add(
        "--encoder",
        default="minilm",
        help="minilm, mobilebert, a folder or a repository (default %(default)s)",
    )
    add("--target", default="smollm2_135m", help="a name of conf/model (default %(default)s)")
    add("--out", type=Path, required=True, help="folder of both heads")
    add("--work", type=Path, default=Path(".cache/tlm"), help="labels and checkpoints (default %(default)s)")
    add("--shared", type=float, default=0.5, help="share of the layers that both heads share")
    add("--rank", type=int, default=16, help="of the updates of upper layers; 0 trains them whole")
    add("--warmup", type=int, default=20, help="updates")
    add("--every", type=int, default=50, help="updates between checkpoints and held-out figures")
    add("--minutes", type=float, default=1e9, help="limit for the training")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--seed", type=int, default=0)
    commands = parser.add_subparsers(dest="head", required=True)
    score = commands.add_parser("score", parents=[both], help="tokens to drop and to retain")
    add = score.add_argument
    add(
        "--labels", default="surprisal", help="or where rows of MeetingBank are: a repository, folder or file"
    )
    add("--columns", nargs=2, default=meeting.COLUMNS, help="of such rows (default %(default)s)")
    add("--datasets", nargs="+", default=["bookcorpus", "wikitext2_train"], help="of texts for surprisal")
    add("--texts", type=int, default=640, help="of all datasets together; rows of MeetingBank")
    add("--tokens", type=int, default=160, help="of the target, the longest text for surprisal")
    add("--length", type=int, default=512, help="longest text in word pieces")
    add("--rate", type=float, default=1e-3)
    add("--epochs", type=float, default=4.0)
    add("--batch-tokens", type=int, default=2048)
    decision = commands.add_parser("decision", parents=[both], help="levels of prompt and model")
    add = decision.add_argument
    add("--dataset", default="mmlu_pro", help="questions of a choice (default %(default)s)")
    add("--questions", type=int, default=100, help="the shortest of the dataset's rows")
    add("--adapters", action="store_true", help="label with the levels' committed adapters")
    add("--order", choices=decisions.ORDERS, default="lightest", help="which right decision is the label")
    add("--default", choices=decisions.DEFAULTS, default="largest", help="the label where none is right")
    add("--margin", type=float, default=0.02, help="left of an objective for what is the same on every level")
    add("--rate", type=float, default=5e-4)
    add("--epochs", type=float, default=2.0)
    add("--batch-tokens", type=int, default=4096)
    args = parser.parse_args(argv)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {args.device}: this machine has no CUDA device; choose cpu")
    return args


class HeadTraining:
    """One run of the command: the network, its encoder and its target."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.encoder = open_encoder(args.encoder)
        self.pieces = WordPieces(self.encoder)
        self.form = HeadSettings(args.shared, args.rank, args.seed)
        self.net = DualHead(load_encoder(self.encoder), self.form)
        self.cell = asked(args.target, [])
        self.text = self.cell.target.tokenizer
        args.work.mkdir(parents=True, exist_ok=True)
        args.out.mkdir(parents=True, exist_ok=True)

    @property
    def state(self) -> Path:
        """The checkpoint of the training."""
        return Path(self.args.work) / f"{self.args.head}.pt"

    def schedule(self, examples: Sequence[heads.HeadExample]) -> Schedule:
        """A schedule with as many updates as the epochs have batches."""
        args = self.args
        tokens = sum(len(one.prompt) for one in examples)
        steps = max(1, round(args.epochs * tokens / args.batch_tokens))
        return Schedule(steps, args.batch_tokens, args.rate, args.warmup, 1.0, 0.01, args.seed)

    def score(self) -> dict[str, Any]:
        """Train the score head; returns what the record says of it."""
        args = self.args
        marked, about = self._meetings() if args.labels != "surprisal" else self._surprising()
        held = marked[::HELDOUT]
        trained = [one for i, one in enumerate(marked) if i % HELDOUT]
        longest = min(args.length, self.net.positions)
        examples, heldout = (heads.scored(some, self.pieces, longest) for some in (trained, held))
        schedule = self.schedule(examples)
        padding = self.pieces.padding
        trainer = heads.ScoreTrainer(self.net, schedule, self.state, args.device, padding)
        trainer.run(
            lambda: examples, args.minutes, args.every, lambda: heads.word_figures(self.net, heldout, held)
        )
        words = sum(len(one.words) for one in marked)
        retained = sum(sum(one.retained) for one in marked)
        data_used = {**about, "texts": len(examples), "heldout_texts": len(heldout)}
        data_used |= {"words": words, "retained": round(retained / words, 4)}
        return {"data": data_used, "recipe": asdict(schedule), "curve": trainer.curve}

    def _surprising(self) -> tuple[list[Marked], dict[str, Any]]:
        args, path = self.args, self.args.work / "words.jsonl"
        digests, found = {}, []
        share = -(-args.texts // len(args.datasets))
        for name in args.datasets:
            config = data.read_config(name)
            rows = data.load_rows(config, surprisal.ROWS_A_TEXT * share)
            digests[name] = rows.digest
            read = [self.text.decode(one.token_ids) for one in data.prompts(config, rows, self.text)]
            texts = [*surprisal.passages(read, surprisal.CHARACTERS_A_TOKEN * args.tokens)][:share]
            found.append([self.text.encode(one)[: args.tokens] for one in texts])
        # The datasets are interleaved, so that every part of the texts has all of them.
        sequences = [one for turn in zip(*found, strict=False) for one in turn][: args.texts]
        decoder = weights.load(self.cell.folder, "float32")
        kept = surprisal.label(decoder, sequences, self.text.decode, path)
        return [surprisal.upper_half(one) for one in kept], {"labels": "surprisal", "rows": digests}

    def _meetings(self) -> tuple[list[Marked], dict[str, Any]]:
        args = self.args
        rows = meeting.read(args.labels, args.texts, args.columns)
        found = [one for row in rows.rows for one in meeting.marked(row, args.columns)]
        return found, {"labels": "MeetingBank", "rows": {"meetingbank": rows.digest}}

    def decision(self) -> dict[str, Any]:
        """Create the labels and train the decision head; returns what the record says of it."""
        args, net, pieces = self.args, self.net, self.pieces
        score = args.out / head_file("score")
        if not score.is_file():
            raise InputError(f"out {args.out}: no score head there; run `train_tlm.py score` first")
        net.load("score", score)
        requests = decisions.requests(args.dataset, self.text)
        rows = decisions.shortest(requests, args.questions)
        inputs = [self.cell.target.digest, requests.rows.digest, record.sha256(score), args.adapters]
        grid = decisions.DecisionGrid(args.work / "grid.jsonl", content_hash(inputs))
        scorer = ScoreHead("in training", "mobilebert", False, Reading(net, pieces, self.text))
        grid.fill(requests, rows, lambda: decisions.levels(self.cell, args.adapters), scorer)
        labels = decisions.Labels(args.order, args.default, args.margin, args.seed)
        made = labels.examples(grid.right, requests, rows, net, pieces)
        held, examples = (
            [one for one in made if (not one.text % HELDOUT_QUESTIONS) is kind] for kind in (True, False)
        )
        judge = decisions.Judge(labels, grid.right, rows[::HELDOUT_QUESTIONS])
        pairs = [(row, objective) for row in judge.rows for objective in labels.feasible]
        schedule, padding = self.schedule(examples), pieces.padding
        trainer = heads.DecisionTrainer(net, schedule, self.state, args.device, padding)

        def measure() -> dict[str, float]:
            said = heads.decided(net, held, padding)
            return judge.judged(dict(zip(pairs, said, strict=True)))

        trainer.run(lambda: examples, args.minutes, args.every, measure)
        about = {"dataset": args.dataset, "rows": requests.rows.digest, "questions": len(rows)}
        about |= {"heldout_questions": len(judge.rows), "objectives": len(labels.feasible)}
        about |= {"adapters": args.adapters}
        return {
            "data": about | decisions.summary(labels, grid.right, rows),
            "rivals": judge.rivals([row for row in rows if row not in judge.rows]),
            "recipe": asdict(schedule),
            "curve": trainer.curve,
        }

    @property
    def command(self) -> str:
        """The command for the record, without options that were not used."""
        given = {
            name: value for name, value in vars(self.args).items() if name != "head" and value is not False
        }
        if given.get("labels") == "surprisal":
            del given["columns"]
        for name in ("encoder", "labels"):
            if name in given:
                given[name] = Path(given[name]).name
        listed = {name: list(one) if isinstance(one, tuple) else one for name, one in given.items()}
        said = record.command(argparse.Namespace(**listed), f"train_tlm {self.args.head}")
        return said.replace(" --adapters True", " --adapters")

    def write(self, found: dict[str, Any]) -> None:
        """Write the head, its record, and the configuration that both heads share."""
        args = self.args
        file = args.out / head_file(args.head)
        self.net.save(args.head, file)
        name = Path(args.encoder).name
        common = {
            "encoder": {"name": name, "fingerprint": fingerprint(self.encoder)},
            "form": asdict(self.form),
            "levels": list(dual_head.LEVELS),
        }
        (args.out / CONFIG).write_text(json.dumps(common, indent=2) + "\n", encoding="utf-8")
        whole = {
            "command": self.command,
            "commit": record.git_commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "target": {"name": self.cell.labels["target"], "digest": self.cell.target.digest},
            "head": {"file_bytes": file.stat().st_size, "sha256": record.sha256(file)},
            **found,
            "machine": record.machine(args),
            "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
        }
        file.with_suffix(".json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Train one head."""
    args = arguments(argv)
    torch.set_num_threads(args.threads)
    run = HeadTraining(args)
    run.write(run.score() if args.head == "score" else run.decision())
    place = f'"{fingerprint(run.encoder)}": Parts("{args.out.as_posix()}", "{digest(args.out)}"),'
    print("For models/trained_heads.COMMITTED:\n    " + place)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
