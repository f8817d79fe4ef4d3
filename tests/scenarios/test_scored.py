"""Scored cells: compressed models on choices, their keys, what is remembered, and what cannot work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.core.registry import register
from repro.data.prompts import Continuation, Prompt
from repro.methods.compression.base import Compressed
from repro.methods.compression.fp16 import Fp16
from repro.models.analysis.hooks import linears_of, with_linears
from repro.models.analysis.likelihood import Likelihood
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear
from repro.reports.intervals.rounds import with_interval
from repro.scenarios import accuracy
from repro.scenarios.accuracy import AccuracyScenario, findings
from repro.scenarios.registry import is_current
from tiny_project import Project, publish, write_project


@register("compression", "worsened")
@dataclass(frozen=True)
class Worsened:
    """Every weight times a factor, and the count of what it was calibrated on."""

    factor: float = -1.0

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        made = {
            place: PlainLinear(linear.tensors()["weight"] * self.factor)
            for place, linear in linears_of(decoder)
        }
        figures = {"texts": len(corpus), "tokens": sum(map(len, corpus))}
        return Compressed(with_linears(decoder, made), figures)


publish()
ROWS = [
    {"goal": f"Goal {i}", "sol1": "a short end", "sol2": f"another end of {i}", "label": i % 2}
    for i in range(5)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny target, five rows of two choices, and texts to calibrate on."""
    project = write_project(tmp_path_factory.mktemp("scored"))
    write(project.root / "data" / "piqa.jsonl", ROWS)
    texts = [{"text": f"word{i} " * 40} for i in range(9)]
    write(project.root / "data" / "wikitext-2-raw-v1_train.jsonl", texts)
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same, with results and a cache of its own."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    accuracy._compress.cache_clear()
    more = ("dataset=piqa", "prompts=4", "corpus.texts=3", "corpus.tokens=300")
    return made.apart(tmp_path, *more)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def compressed_by(*overrides: str) -> tuple[str, ...]:
    return ("compression=worsened", *overrides)


def test_a_record_has_accuracies_their_difference_and_the_compression_s_own_figures(project: Project) -> None:
    record = project.record(*compressed_by())
    assert record.labels == {
        "method": "worsened",
        "compression": "worsened",
        "device": "host",
        "dataset": "piqa",
        "target": "SmolLM2-135M-Instruct",
        "draft": "none",
        "agreement": "native",
    }
    values = record.values
    assert (values["texts"], values["tokens"], values["rows"], values["chance"]) == (3, 900, 4, 50.0)
    assert values["accuracy"] == values["acc_norm"], "PIQA is scored so"
    assert values["difference"] == values["accuracy"] - values["baseline_accuracy"]
    assert (values["difference_low"], record.uncertainty) == (None, {}), "of four rows"
    rounds = project.store.rounds(record.key)
    assert [one["id"] for one in rounds] == [f"piqa/{i}" for i in range(4)]
    assert sum(one["right"] != one["baseline_right"] for one in rounds) == values["flips"]
    assert [one["right"] for one in rounds] == [int(one["choice"] == i % 2) for i, one in enumerate(rounds)]
    assert (record.provenance.clock, record.provenance.weights) == ("virtual", "real")
    assert is_current(record)


def test_the_baseline_is_scored_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[Fp16] = []
    compress = Fp16.compress
    monkeypatch.setattr(Fp16, "compress", lambda self, *of: scored.append(self) or compress(self, *of))
    for overrides in (compressed_by(), compressed_by("compression.factor=2.0"), ("compression=fp16",)):
        assert project.cell(*overrides).state == "done"
    assert len(scored) == 1


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("compression.factor=2.0", True),
        ("corpus.tokens=200", True),
        ("prompts=3", True),
        ("skip=1", True),
        ("dataset.scoring.metric=acc", True),
        ("max_tokens=7", False),
        ("device=xiaomi_14", False),
        ("name=other", False),
    ],
)
def test_the_key_is_what_is_asked(project: Project, override: str, changes: bool) -> None:
    keys = [AccuracyScenario(project.config(*compressed_by(*more))).key for more in ((), (override,))]
    assert (keys[0] != keys[1]) == changes


def test_a_compression_that_reads_no_corpus_has_none_in_its_key(project: Project) -> None:
    cells = (project.config("compression=fp16", f"corpus.tokens={tokens}") for tokens in (200, 300))
    assert len({AccuracyScenario(cell).key for cell in cells}) == 1


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("dataset=humaneval",), "generated.*choice, filled_blank, last_word"),
        (("target.checkpoint=null", "+model/shape@target.shape=gpt2"), "has no checkpoint"),
        (("corpus.texts=0",), "corpus.texts is 0"),
        (("corpus.texts=99",), "lower corpus.texts"),
        (("skip=9",), "skip fewer than 5"),
        (("host=cuda",), "computes on the cpu"),
        (("+target.rounded=4",), "target.rounded=null"),
    ],
)
def test_what_cannot_work_is_said_first(project: Project, overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        _ = AccuracyScenario(project.config(*compressed_by(*overrides))).key


def test_a_row_longer_than_the_context_fails_before_the_work(project: Project) -> None:
    write(project.out / "piqa.jsonl", [{"goal": "x" * 600, "sol1": "a", "sol2": "b", "label": 0}])
    folder = override("data_dir", project.out)
    with pytest.raises(InputError, match="do not fit the context"):
        AccuracyScenario(project.config("compression=fp16", "prompts=1", folder)).check()


def prompt(answer: int, *texts: str) -> Prompt:
    continuations = tuple(Continuation((1,), (2,), text) for text in texts)
    return Prompt("p", (1,), "", "", continuations, answer)


def test_verdicts_by_sum_by_byte_and_by_greediness() -> None:
    rows, two = [prompt(1, "ab", "abcd"), prompt(0, "é", "e")], [[-2.0, -3.0], [-2.0, -1.5]]
    said = [[Likelihood(nats, False) for nats in row] for row in two]
    for metric, right in (("acc", [0, 0]), ("acc_norm", [1, 1])):
        found = findings(rows, said, said, metric)
        assert [one["right"] for one in found.rounds] == right
        assert found.values["accuracy"] == found.values[metric]
    words = [prompt(0, "word"), prompt(0, "word")]
    before = [[Likelihood(-2.0, True, True)], [Likelihood(-2.0, False, True)]]
    after = [[Likelihood(-9.0, True, True)], [Likelihood(-1.0, False, False)]]
    found = findings(words, after, before, "greedy")
    assert [one["right"] for one in found.rounds] == [1, 0]
    assert found.values["chance"] is None
    assert (found.values["last_token"], found.values["last_token_difference"]) == (50.0, -50.0)
    assert (found.values["nats_per_token"], found.values["nats_lost"]) == (5.0, 3.0)


def test_a_whole_text_has_nats_and_no_verdict(made: Project) -> None:
    """Totals over totals, all tokens after the first word; the interval is of the same texts."""
    texts = [
        Prompt(f"t/{i}", (1,), "", "", (Continuation((1,), (2,) * n, "x"),), 0) for i, n in enumerate((2, 6))
    ]
    after = [[Likelihood(-4.0, False)], [Likelihood(-8.0, False)]]
    before = [[Likelihood(-1.0, False)], [Likelihood(-7.0, False)]]
    found = findings(texts, after, before, "none")
    assert found.values == {"nats_per_token": 12 / 8, "nats_lost": 4 / 8, "scored_tokens": 8, "rows": 2}
    assert "accuracy" not in found.values
    (made.root / "data" / "wikitext-2-raw-v1_test.jsonl").write_text(
        "".join(json.dumps({"text": f"first{i} " + f"word{i} " * 40}) + "\n" for i in range(6)),
        encoding="utf-8",
    )
    config = made.config("dataset=wikitext2_texts", "compression=worsened", "prompts=6", "corpus.texts=2")
    cell = AccuracyScenario(config)
    (continuation,) = cell.prompts[0].continuations
    assert cell.target.tokenizer.decode(continuation.context) == "first0"
    outcome = cell.run(lambda what, done, total: None)
    low, high = with_interval(outcome.record, outcome.rounds).uncertainty["nats_lost"]  # type: ignore[misc]
    assert low <= float(str(outcome.record.values["nats_lost"])) <= high
