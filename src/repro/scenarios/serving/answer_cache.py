"""Correctness of a compressed model's answers to shortened prompts, cached on disk.

Owns the prompts of a dataset's examples, which of their tokens may be dropped, and the answer cache. Must not
know its callers, devices, objectives or time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from repro import data
from repro.core.errors import InputError
from repro.data.config import DatasetConfig, scoring_of
from repro.data.prompts import Prompt, Tokens
from repro.methods.compression.base import Compression
from repro.methods.serving.shortening import Scorer, shortened
from repro.methods.serving.slo import Decision, kept_tokens
from repro.models.analysis.likelihood import Likelihood, Reader, common
from repro.models.checkpoints.tokenizer import Tokenizer
from repro.models.transformer.decoder import Decoder
from repro.records.effort import count
from repro.records.identity import dataset_asked, files_read, version_of
from repro.records.record import content_hash
from repro.records.row_file import RowFile
from repro.scenarios import versions
from repro.scenarios.accuracy import best_of, metric_of
from repro.scenarios.base import Progress

FEW = 16
"""Number of examples used to detect the common prompt prefix."""
KEPT = 6
"""Compressed models kept in memory, each at most the size of the full model."""

_made: dict[tuple[str, Compression | None, str], Decoder] = {}


class Query(NamedTuple):
    """An example of a dataset, and the levels that serve it."""

    dataset: str
    row: int
    decision: Decision


@dataclass(frozen=True)
class DatasetRequests:
    """The examples of one dataset as requests of an app.

    Attributes:
        dataset: the dataset.
        rows: its examples.
        text: the tokenizer of the serving model.
        scorer: token scorer with which callers have shortened the common prefix; None if they have not.
        concise: share of the common prefix that callers keep.
    """

    dataset: DatasetConfig
    rows: data.Rows
    text: Tokenizer
    scorer: Scorer | None = None
    concise: float = 1.0

    def __post_init__(self) -> None:
        if not scoring_of(self.dataset).scores_continuations:
            raise InputError(
                f"the answers of dataset {self.dataset.name!r} are generated, and requests are answered by a "
                "choice; take a dataset whose scoring is a choice (docs/datasets.md lists them)"
            )

    @cached_property
    def _known(self) -> dict[int, Prompt]:
        return {}

    def _whole(self, row: int) -> Prompt:
        """An example's full prompt, tokenized on first use, since many choices take long to tokenize."""
        if row not in self._known:
            only = replace(self.rows, rows=self.rows.rows[row : row + 1])
            self._known[row] = data.prompts(self.dataset, only, _Repeating(self.text))[0]
        return self._known[row]

    @cached_property
    def _beginning(self) -> Tokens:
        """The common prefix of all requests, detected from the first `FEW`."""
        few = [self._whole(row) for row in range(min(FEW, len(self.rows.rows)))]
        return few[0].continuations[0].context[: beginning(few, self.text)]

    @cached_property
    def spare(self) -> int:
        """Number of tokens of a request that may be dropped: instructions and worked examples."""
        return int(self.concise * len(self._beginning))

    @cached_property
    def _scores(self) -> Sequence[float]:
        """Token scores of the common prefix, used if callers shorten it."""
        assert self.scorer is not None, "somebody has to choose what callers leave out"
        return self.scorer.scores(self._beginning)

    def prompt(self, row: int) -> Prompt:
        """An example's prompt, its prefix shortened by the caller if `concise` is below 1."""
        whole, long = self._whole(row), len(self._beginning)
        if self.concise == 1.0:
            return whole

        def streamlined(context: Tokens) -> Tokens:
            return shortened(context, len(context) - long + self.spare, self._scores, long)

        return replace(
            whole,
            continuations=tuple(replace(c, context=streamlined(c.context)) for c in whole.continuations),
        )

    def read(self, row: int) -> Tokens:
        """All prompt tokens of a request."""
        return self.prompt(row).continuations[0].context

    def is_right(self, row: int, said: Sequence[Likelihood]) -> bool:
        """Whether an example's correct continuation is among the `best_of` likeliest."""
        prompt, scoring = self.prompt(row), scoring_of(self.dataset)
        assert prompt.answer is not None
        if metric_of(scoring) == "greedy":
            return said[prompt.answer].greedy
        divided = metric_of(scoring) == "acc_norm"
        worth = [
            one.nats / (len(c.text.encode()) if divided else 1)
            for one, c in zip(said, prompt.continuations, strict=True)
        ]
        # Ties are broken by index.
        before = sum(
            other > worth[prompt.answer] or (other == worth[prompt.answer] and i < prompt.answer)
            for i, other in enumerate(worth)
        )
        return before < best_of(scoring)

    def chance(self, row: int) -> float:
        """Probability that a random guess is correct."""
        return best_of(scoring_of(self.dataset)) / len(self._whole(row).continuations)


class _Repeating:
    """A tokenizer that caches its last texts: the same context is encoded before each choice."""

    def __init__(self, text: Tokenizer) -> None:
        self._text = text
        self._encoded = lru_cache(maxsize=4)(text.encode)

    @property
    def has_chat(self) -> bool:
        """See `Tokenizer`."""
        return self._text.has_chat

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return self._encoded(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return self._text.decode(ids)

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """See `Tokenizer`."""
        return self._text.chat(messages)


def beginning(prompts: Sequence[Prompt], text: Tokenizer) -> int:
    """Length in tokens of the common prefix, cut back to the end of a line."""
    count = common(c.context for prompt in prompts for c in prompt.continuations)
    first = prompts[0].continuations[0].context
    while count and "\n" not in text.decode(first[count - 1 : count]):
        count -= 1
    return count


@dataclass(frozen=True)
class Shortening:
    """How prompts are shortened.

    Attributes:
        scorer: token scorer, identified by its class and settings; None if prompts are not shortened.
        granule: see `slo.kept_tokens`.
    """

    scorer: Scorer | None
    granule: int = 1

    @property
    def identity(self) -> list[str]:
        """The values that decide its outcome, for the cache key."""
        if self.scorer is None:
            return ["none"]
        settings = repr(self.scorer) if is_dataclass(self.scorer) else ""
        return [str(self.granule), type(self.scorer).__qualname__, settings]


RIGHT = "correct"
"""Table of the answer cache."""


class AnswerStore:
    """Correctness by column (model level, dataset, prompt level) and example, in a file; see `RowFile`."""

    def __init__(self, path: Path) -> None:
        self._file = RowFile(path, (RIGHT,))

    def get(self, column: str, rows: Iterable[int]) -> dict[int, bool]:
        """The stored ones among some examples of a column."""
        found = {row: self._file.get(RIGHT, _answer_key(column, row)) for row in rows}
        return {row: right == b"\1" for row, right in found.items() if right is not None}

    def put(self, column: str, found: Mapping[int, bool]) -> None:
        """Store examples of a column."""
        rows = [(_answer_key(column, row), bytes([right])) for row, right in found.items()]
        self._file.put(RIGHT, rows, replace=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _answer_key(column: str, row: int) -> bytes:
    return bytes.fromhex(column) + row.to_bytes(4, "little")


@dataclass(frozen=True)
class AnswerCache:
    """Cached answers of one model at all levels of one compression.

    Attributes:
        digest: digest of the model's checkpoint.
        open: loads its weights, dense in fp32; called on a cache miss.
        compression: the compression of a level; None leaves the model unchanged.
        corpus: token sequences on which the compression is calibrated.
        corpus_digest: digest of the corpus.
        requests: requests by dataset.
        shortening: how prompts are shortened.
        root: the cache folder.
    """

    digest: str
    open: Callable[[], Decoder]
    compression: Callable[[float], Compression | None]
    corpus: Sequence[Sequence[int]]
    corpus_digest: str
    requests: Mapping[str, DatasetRequests]
    shortening: Shortening
    root: Path

    def right(self, wanted: Collection[Query], progress: Progress) -> dict[Query, bool]:
        """Whether each query is answered correctly; uncached ones are computed, level by level."""
        found: dict[Query, bool] = {}
        columns: dict[float, dict[tuple[str, float], list[int]]] = defaultdict(lambda: defaultdict(list))
        for dataset, row, decision in sorted(set(wanted)):
            columns[decision.model][dataset, decision.prompt].append(row)
        with closing(AnswerStore(self.root / "answers" / f"{self.digest[:24]}.sqlite")) as memory:
            for model, datasets in sorted(columns.items()):
                reader: Reader | None = None
                for (dataset, prompt), rows in datasets.items():
                    key = self._key(dataset, Decision(prompt, model))
                    known = memory.get(key, rows)
                    missing = [row for row in rows if row not in known]
                    count(computed=((key, row) for row in missing), found=((key, row) for row in rows))
                    if missing:
                        progress("answering", len(found), len(wanted))
                        reader = reader or self._reader(model)
                        new = self._column(reader, dataset, prompt, missing)
                        memory.put(key, new)
                        known |= new
                    found |= {Query(dataset, row, Decision(prompt, model)): known[row] for row in rows}
        progress("answering", len(found), len(wanted))
        return found

    def _key(self, dataset: str, decision: Decision) -> str:
        requests, compression = self.requests[dataset], self._compression(decision.model)
        made: list[object] = ["whole"]
        if compression is not None:
            own = [self.corpus_digest] if compression.calibrated else []
            kind = type(compression)
            files = files_read(compression)
            made = [kind.__qualname__, version_of(kind), asdict(compression), files, *own]  # type: ignore[call-overload]
        shorter = self.shortening.identity if decision.prompt < 1.0 else []
        asked: list[object] = [dataset_asked(asdict(requests.dataset)), requests.rows.digest]
        if requests.concise < 1.0:
            asked += [requests.concise, *Shortening(requests.scorer).identity]
        shown = [decision.prompt, *shorter, requests.spare]
        return content_hash([self.digest, made, asked, shown, versions.WEIGHTS])

    def _compression(self, model: float) -> Compression | None:
        return None if model == 1.0 else self.compression(model)

    def _reader(self, model: float) -> Reader:
        """The model of a level; the last `KEPT` models are cached, since compressing takes long."""
        compression = self._compression(model)
        key = (self.digest, compression, self.corpus_digest)
        if key not in _made:
            if len(_made) == KEPT:
                del _made[next(iter(_made))]
            _made[key] = self._made(compression)
        return Reader(_made[key])

    def _made(self, compression: Compression | None) -> Decoder:
        decoder = self.open()
        if compression is None:
            return decoder
        corpus = [torch.tensor(sequence) for sequence in self.corpus] if compression.calibrated else []
        return compression.compress(decoder, corpus).decoder

    def _column(self, reader: Reader, dataset: str, prompt: float, rows: Iterable[int]) -> dict[int, bool]:
        """Score examples of one column, sorted so that common prefixes follow each other."""
        requests = self.requests[dataset]
        shorten = self._shortener(requests, prompt)
        pairs = {
            row: [(shorten(c.context), c.token_ids) for c in requests.prompt(row).continuations]
            for row in rows
        }
        found: dict[int, bool] = {}
        for row in sorted(pairs, key=lambda row: pairs[row]):
            found[row] = requests.is_right(row, reader.score(pairs[row]))
        return found

    def _shortener(self, requests: DatasetRequests, level: float) -> Callable[[Tokens], Tokens]:
        """The function that shortens a context to a level; the common prefix is scored once."""
        if level == 1.0:
            return lambda context: context
        scorer, spare = self.shortening.scorer, requests.spare
        if scorer is None:
            raise InputError(
                f"prompts are to be shortened to {level:g}, and nothing scores their tokens; choose a "
                "service with a scorer, or whole prompts"
            )
        scores = scorer.scores(requests.read(0)[:spare]) if spare else []

        def shorten(context: Tokens) -> Tokens:
            count = kept_tokens(len(context), level, spare, self.shortening.granule)
            return shortened(context, count, scores, spare)

        return shorten
