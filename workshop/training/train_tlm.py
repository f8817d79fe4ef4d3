"""Train the heads of ElastiLM's dual-head model (3.3): the score head first, then the decision head.

    REPRO_DATA=FOLDER python -m workshop.training.train_tlm score --out assets/tlm/minilm
    REPRO_DATA=FOLDER python -m workshop.training.train_tlm decision --out assets/tlm/minilm

Makes heads on a frozen encoder, from texts whose words the target labels by their surprisal (those above the
median of their text are retained), then from questions of MMLU-Pro that the elasticized target answers at
every level. Deviation: the paper uses GPT-4's labels of MeetingBank, `--labels
microsoft/MeetingBank-LLMCompressed`.

The committed heads took 8 and 10 minutes of training on one core. A killed run continues with the same
command; labels are stored in `--work` and are not part of the project. Each head is written to `--out` with
its record.

Prints the line for `methods/elastilm/trained_heads.COMMITTED` that makes runs use the folder with this head.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from repro import data
from repro.core.errors import InputError
from repro.methods.elastilm.dual_head_network import DualHead, HeadSettings
from repro.methods.elastilm.score_head import Reading, ScoreHead
from repro.methods.elastilm.trained_heads import fingerprint, head_file
from repro.methods.elastilm.word_pieces import WordPieces, load_encoder, open_encoder
from repro.methods.serving.slo import LEVELS
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.weight_files import CONFIG_FILE
from repro.models.checkpoints.wheels import sha256_of
from repro.models.transformer import weights
from repro.records.record import content_hash
from workshop.training import command, decision_head, score_head
from workshop.training.elasticize import scenario
from workshop.training.loop import Figures, Part, Training, by_length
from workshop.training.score_head import HeadExample, Marked

HELDOUT = 10  # every tenth text, every fifth question
HELDOUT_QUESTIONS = 5
DATASETS = ["bookcorpus", "wikitext2_train"]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; the defaults are those of the committed heads."""
    parser = command.parser_of(__doc__)
    both = argparse.ArgumentParser(add_help=False)
    command.add_resumed(both, ".cache/tlm", every=50)
    add = both.add_argument
    encoders = "minilm, mobilebert, a folder or a repository (default %(default)s)"
    add("--encoder", default="minilm", help=encoders)
    add("--target", default="smollm2_135m", help="a name of conf/model (default %(default)s)")
    add("--shared", type=float, default=0.5, help="share of the layers that both heads share")
    add("--rank", type=int, default=16, help="of the updates of upper layers; 0 trains them whole")
    commands = parser.add_subparsers(dest="head", required=True)
    score = commands.add_parser("score", parents=[both], help="tokens to drop and to retain")
    add = score.add_argument
    meetings = "or where rows of MeetingBank are: a repository, folder or file"
    add("--labels", default="surprisal", help=meetings)
    add("--columns", action="append", help="two of such rows: a text, and its compressed form")
    add("--datasets", action="append", help=f"of texts for surprisal (default {DATASETS})")
    add("--texts", type=int, default=640, help="of all datasets together; rows of MeetingBank")
    add("--tokens", type=int, default=160, help="of the target, the longest text for surprisal")
    add("--length", type=int, default=512, help="longest text in word pieces")
    command.add_epochs(score, 1e-3, epochs=4.0, batch_tokens=2048, warmup=20)
    decision = commands.add_parser("decision", parents=[both], help="levels of prompt and model")
    add = decision.add_argument
    add("--dataset", default="mmlu_pro", help="questions of a choice (default %(default)s)")
    add("--questions", type=int, default=100, help="the shortest of the dataset's rows")
    add("--adapters", action="store_true", help="label with the levels' committed adapters")
    add("--margin", type=float, default=0.02, help="left of an objective for what is the same on every level")
    command.add_epochs(decision, 5e-4, epochs=2.0, batch_tokens=4096, warmup=20)
    return command.parsed(parser, argv)


class HeadTraining:
    """One run of the command: the network, its encoder and its target."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.encoder = open_encoder(args.encoder)
        self.pieces = WordPieces(self.encoder)
        self.form = HeadSettings(args.shared, args.rank, args.seed)
        self.net = DualHead(load_encoder(self.encoder), self.form)
        self.cell = scenario(args.target)
        self.text = self.cell.target.tokenizer
        args.work.mkdir(parents=True, exist_ok=True)
        args.out.mkdir(parents=True, exist_ok=True)

    def train(
        self,
        parameters: Mapping[str, nn.Parameter],
        examples: Sequence[HeadExample],
        loss: Callable[[list[HeadExample], int], Iterator[Part]],
        measure: Callable[[], Figures],
    ) -> dict[str, Any]:
        """Train these parameters, in as many updates as the epochs have batches.

        Returns what the record says of it.
        """
        args = self.args
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        schedule = command.schedule_of(args, examples)
        training = Training(self.net, schedule, args.work / f"{args.head}.pt", args.device)
        training.run(
            lambda epoch: by_length(examples, schedule, epoch),
            loss,
            minutes=args.minutes,
            every=args.every,
            measure=measure,
        )
        return {"recipe": asdict(schedule), "curve": training.curve}

    def score(self) -> dict[str, Any]:
        """Train the score head; returns what the record says of it."""
        args, net = self.args, self.net
        marked, about = self._meetings() if args.labels != "surprisal" else self._surprising()
        longest = min(args.length, net.positions)
        held = marked[::HELDOUT]
        learned = [text for i, text in enumerate(marked) if i % HELDOUT]
        examples, heldout = (score_head.scored(some, self.pieces, longest) for some in (learned, held))
        loss = score_head.ScoreLoss(net, self.pieces.padding)
        trained = self.train(
            net.part("score"), examples, loss, lambda: score_head.word_figures(net, heldout, held)
        )
        words = sum(len(text.words) for text in marked)
        retained = sum(sum(text.retained) for text in marked)
        about |= {"texts": len(examples), "heldout_texts": len(heldout)}
        return {"data": about | {"words": words, "retained": round(retained / words, 4)}, **trained}

    def _surprising(self) -> tuple[list[Marked], dict[str, Any]]:
        """Texts with words marked by surprisal, and what the record says of them."""
        args, text = self.args, self.text
        digests, sequences = {}, []
        datasets = args.datasets or DATASETS
        share = -(-args.texts // len(datasets))
        for name in datasets:
            config = data.read_config(name)
            rows = data.load_rows(config, score_head.ROWS_A_TEXT * share)
            digests[name] = rows.digest
            read = [text.decode(prompt.token_ids) for prompt in data.prompts(config, rows, text)]
            passages = [*score_head.passages(read, score_head.CHARACTERS_A_TOKEN * args.tokens)][:share]
            sequences.append([text.encode(passage)[: args.tokens] for passage in passages])
        # The datasets are interleaved, so that every part of the texts has all of them.
        mixed = [tokens for turn in zip(*sequences, strict=False) for tokens in turn][: args.texts]
        marked = score_head.marked_by_surprisal(
            lambda: weights.load(self.cell.folder, "float32"),
            mixed,
            text.decode,
            args.work / "word_labels.jsonl",
        )
        return marked, {"labels": "surprisal", "rows": digests}

    def _meetings(self) -> tuple[list[Marked], dict[str, Any]]:
        """Texts with words marked by GPT-4, and what the record says of them."""
        columns = self.args.columns or score_head.COLUMNS
        rows = score_head.read_meetings(self.args.labels, self.args.texts, columns)
        marked = [chunk for row in rows.rows for chunk in score_head.marked_chunks(row, columns)]
        return marked, {"labels": "MeetingBank", "rows": {"meetingbank": rows.digest}}

    def decision(self) -> dict[str, Any]:
        """Create the labels and train the decision head; returns what the record says of it."""
        args, net, pieces = self.args, self.net, self.pieces
        score = args.out / head_file("score")
        if not score.is_file():
            raise InputError(f"out {args.out}: no score head there; run `train_tlm score` first")
        net.load("score", score)
        requests = decision_head.requests(args.dataset, self.text)
        rows = decision_head.shortest(requests, args.questions)
        inputs = [self.cell.target.digest, requests.rows.digest, sha256_of(score), args.adapters]
        scorer = ScoreHead("in training", "mobilebert", False, Reading(net, pieces, self.text))
        right = decision_head.right_decisions(
            args.work / "decision_labels.jsonl",
            content_hash(inputs),
            requests,
            rows,
            lambda: decision_head.levels(self.cell, args.adapters),
            scorer,
        )
        labels = decision_head.Labels(args.margin)
        made = labels.examples(right, requests, rows, net, pieces)
        examples = [example for example in made if example.text % HELDOUT_QUESTIONS]
        held = [example for example in made if not example.text % HELDOUT_QUESTIONS]
        judge = decision_head.Judge(labels, right, rows[::HELDOUT_QUESTIONS])

        def measure() -> Figures:
            return judge.judged(decision_head.decided(net, held, pieces.padding))

        loss = decision_head.DecisionLoss(net, pieces.padding)
        trained = self.train(net.part("decision") | {"objective": net.objective}, examples, loss, measure)
        about = {"dataset": args.dataset, "rows": requests.rows.digest, "questions": len(rows)}
        about |= {"heldout_questions": len(judge.rows), "objectives": len(labels.feasible)}
        about |= decision_head.summary(labels, right, rows)
        rivals = judge.rivals([row for row in rows if row not in judge.rows])
        return {"data": about, "rivals": rivals, **trained}

    def write(self, found: dict[str, Any]) -> None:
        """Write the head, its record, and the configuration that both heads share."""
        args = self.args
        file = args.out / head_file(args.head)
        self.net.save(args.head, file)
        common = {
            "encoder": {"name": Path(args.encoder).name, "fingerprint": fingerprint(self.encoder)},
            "form": asdict(self.form),
            "levels": list(LEVELS),
        }
        command.write_json(args.out / CONFIG_FILE, common)
        named = vars(args) | {
            name: Path(getattr(args, name)).name for name in ("encoder", "labels") if name in args
        }
        del named["head"]
        target = {"name": self.cell.labels["target"], "digest": self.cell.target.digest}
        options, script = argparse.Namespace(**named), f"train_tlm {args.head}"
        command.write_record(file.with_suffix(".json"), options, script, file, target=target, **found)


def main(argv: Sequence[str] | None = None) -> None:
    """Train one head."""
    args = arguments(argv)
    run = HeadTraining(args)
    run.write(run.score() if args.head == "score" else run.decision())
    place = f'"{fingerprint(run.encoder)}": Parts("{args.out.as_posix()}", "{digest(args.out)}"),'
    print("For methods/elastilm/trained_heads.COMMITTED:\n    " + place)


if __name__ == "__main__":
    command.run(main)
