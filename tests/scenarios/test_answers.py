"""Requests as they are read, verdicts on answers, and that what was answered once is not computed again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from repro import data
from repro.core.registry import discover
from repro.data.corpus import Corpus
from repro.data.prompts import Prompt
from repro.methods.compression.base import Compressed, Compression
from repro.methods.serving.shortening import AnyToken, Scorer
from repro.methods.serving.slo import Decision
from repro.models.analysis.likelihood import Likelihood
from repro.models.transformer.decoder import Decoder
from repro.scenarios.accuracy import AccuracyScenario, findings
from repro.scenarios.base import silent
from repro.scenarios.serving import scenario
from repro.scenarios.serving.asked import DatasetRequests
from repro.scenarios.serving.scenario import AnswerCache, Query, ServingScenario, Shortening
from tiny import decoder
from tiny_project import Project, write_project
from tiny_requests import PREAMBLE, REQUEST, SET, SPARE, Bytes, Last, write_rows

discover("repro.metrics")
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
WHOLE = Decision(1.0, 1.0)


@dataclass(frozen=True)
class Halved:
    """A compression that does nothing."""

    level: float = 0.5
    factor: int = 1

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        return Compressed(decoder)


@dataclass(frozen=True)
class Uncalibrated(Halved):
    """The same, but no corpus is read."""

    calibrated: ClassVar[bool] = False


@pytest.fixture(autouse=True)
def nothing_open() -> None:
    """No model is kept from the test before."""
    scenario._compressed_decoders.clear()


@pytest.fixture
def rows(tmp_path: Path) -> data.Rows:
    """Eight rows of two choices."""
    write_rows(tmp_path)
    return data.load_rows(SET, None, tmp_path)


@pytest.fixture
def requests(rows: data.Rows) -> DatasetRequests:
    """The same as an app's requests."""
    return DatasetRequests(SET, rows, Bytes())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that models read, in order; each token of a continuation takes a nat."""
    told: list[str] = []

    class Told:
        def __init__(self, decoder: Decoder) -> None:
            """As of `Reader`."""

        def score(self, pairs: Pairs) -> list[Likelihood]:
            told.append(Bytes().decode(list(pairs[0][0])))
            return [Likelihood(-float(len(said)), False) for _, said in pairs]

    monkeypatch.setattr(scenario, "Reader", Told)
    return told


def asked(
    root: Path,
    requests: DatasetRequests,
    compression: Callable[[float], Compression | None] = lambda level: None,
    scorer: Scorer | None = None,
    granule: int = 8,
    corpus: str = "corpus",
    digest: str = "digest",
) -> AnswerCache:
    shortening = Shortening(scorer, granule)
    texts = Corpus((), corpus)
    opens = partial(decoder, "llama-2")
    return AnswerCache(digest, opens, compression, texts, {SET.name: requests}, shortening, root)


def right(these: AnswerCache, rows: Sequence[int] = (0,), decision: Decision = WHOLE) -> list[bool]:
    """Verdicts of rows, in their order."""
    questions = [Query(SET.name, row, decision) for row in rows]
    found = these.right(questions, lambda *_: None)
    return [found[one] for one in questions]


def test_what_all_requests_begin_with_ends_where_a_line_does(requests: DatasetRequests) -> None:
    whole = Bytes().decode(requests.read(3))
    assert whole == f"{PREAMBLE}\n\nQuestion: 3 goals\nAnswer:"
    assert (requests.spare, len(whole)) == (SPARE, SPARE + REQUEST)
    # Behind the line all rows go on alike with `Query: `, which is no end of a line.
    assert whole[SPARE:].startswith("Question: ")


@pytest.mark.parametrize(
    ("level", "granule", "kept"),
    [
        (0.5, 1, 17),  # of 85 tokens 42 may be read, 25 of which are the request
        (0.5, 8, 16),
        (0.5, 5, 15),
        (0.8, 8, 40),  # 68 - 25 = 43
        (0.3, 8, 0),  # 25 - 25
        (0.2, 8, 0),  # the request itself is longer than 17 tokens, and stays
    ],
)
def test_of_the_beginning_so_much_stays_as_the_level_leaves(
    tmp_path: Path, requests: DatasetRequests, read: list[str], level: float, granule: int, kept: int
) -> None:
    these = asked(tmp_path, requests, scorer=Last(), granule=granule)
    right(these, (3,), Decision(level, 1.0))
    assert read == [f"{PREAMBLE}\n\n"[SPARE - kept :] + "Question: 3 goals\nAnswer:"]


def drawn(count: int, choices: int) -> list[list[Likelihood]]:
    """Likelihoods that are often equal, also when divided by 10 and 20 bytes."""
    chance = random.Random(choices)
    return [[Likelihood(-float(chance.randint(1, 4)), True) for _ in range(choices)] for _ in range(count)]


@pytest.mark.parametrize("metric", ["acc", "acc_norm"])
def test_a_verdict_is_that_of_a_scored_cell(tmp_path: Path, metric: str) -> None:
    some = [{"goal": f"{i}", "sol1": "ten bytes.", "sol2": "twenty bytes it has."} for i in range(40)]
    write_rows(tmp_path, [{**row, "label": i % 2} for i, row in enumerate(some)])
    config = replace(SET, scoring={**SET.scoring, "metric": metric})
    made, said = DatasetRequests(config, data.load_rows(config, None, tmp_path), Bytes()), drawn(40, 2)
    wanted = [one["right"] for one in findings(prompts_of(made), said, said, metric).rounds]
    assert [int(made.is_right(row, one)) for row, one in enumerate(said)] == wanted
    assert {0, 1} == set(wanted)


def prompts_of(made: DatasetRequests) -> list[Prompt]:
    return [made.prompt(row) for row in range(len(made.rows.rows))]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny target, rows, and texts to calibrate on."""
    project = write_project(tmp_path_factory.mktemp("answers"))
    write_rows(project.root / "data")
    more = ("dataset=piqa", "prompts=8", "corpus.texts=3", "corpus.tokens=100")
    return project.apart(project.root, *more)


@pytest.mark.parametrize(
    ("name", "settings"), [("layerwise", ()), ("elastilm", ("lora=false",)), ("llm_pruner", ())]
)
def test_whole_prompts_are_answered_as_a_scored_cell_answers(
    made: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, settings: tuple[str, ...]
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path))
    fields = [f"service.{one}" for one in settings]
    if name == "elastilm":
        fields += ["service.decider=random", "service.scorer=none"]
    served = ServingScenario(made.config("trace=standalone", f"service={name}", "app.dataset=piqa", *fields))
    questions = [Query("piqa", row, Decision(1.0, 0.5)) for row in range(8)]
    found = served.right(questions, silent)
    given = [f"compression={name}", "compression.level=0.5", *(f"compression.{one}" for one in settings)]
    scored = AccuracyScenario(made.config(*given)).find(lambda *_: None)
    assert [int(found[one]) for one in questions] == [one["right"] for one in scored.rounds]
    plain = served.right_in_full(questions, silent)
    assert [int(plain[one]) for one in questions] == [one["baseline_right"] for one in scored.rounds]


def test_what_was_answered_is_remembered(tmp_path: Path, requests: DatasetRequests, read: list[str]) -> None:
    # A nat a token, the space among them, weighs least on the longer choice, right in every other row.
    assert right(asked(tmp_path, requests), (2, 0, 1)) == [False, False, True]
    assert len(read) == 3
    assert right(asked(tmp_path, requests), (1, 2)) == [True, False]
    assert len(read) == 3, "nothing was computed"
    right(asked(tmp_path, requests), (0, 1, 5))
    assert len(read) == 4, "of three rows one was new"
    assert read[-1].endswith("Question: 5 goals\nAnswer:")


def columns(root: Path, requests: DatasetRequests) -> Iterator[tuple[str, AnswerCache]]:
    """Answers that differ from the first in one thing each, by that thing."""

    def made(of: DatasetRequests = requests, **given: Any) -> AnswerCache:
        usual: dict[str, Any] = {"compression": Halved, "scorer": Last()}
        return asked(root, of, **{**usual, **given})

    yield "the first", made()
    yield "a field of the compression", made(compression=lambda level: Halved(level, factor=2))
    yield "the compression", made(compression=Uncalibrated)
    yield "the corpus", made(corpus="other")
    yield "the checkpoint", made(digest="other")
    yield "a scorer", made(scorer=AnyToken())
    yield "a field of the scorer", made(scorer=Last(every=2))
    yield "the granule", made(granule=4)
    yield "rows", made(of=replace(requests, rows=replace(requests.rows, digest="other")))
    other = replace(SET, scoring={**SET.scoring, "metric": "acc"})
    yield "a prompt", made(of=replace(requests, dataset=other))
    yield "streamlined prompts", made(of=replace(requests, scorer=Last(), concise=0.9))
    yield "otherwise streamlined ones", made(of=replace(requests, scorer=AnyToken(), concise=0.9))


def test_what_decides_an_answer_tells_columns_apart(
    tmp_path: Path, requests: DatasetRequests, read: list[str]
) -> None:
    for count, (what, these) in enumerate(columns(tmp_path, requests), start=1):
        for _ in range(2):
            right(these, (0,), Decision(0.5, 0.5))
            assert len(read) == count, what
    for decision in (Decision(0.4, 0.5), Decision(0.5, 0.4), Decision(1.0, 0.5), WHOLE):
        before = len(read)
        right(asked(tmp_path, requests, Halved, Last()), (0,), decision)
        assert len(read) == before + 1, decision
