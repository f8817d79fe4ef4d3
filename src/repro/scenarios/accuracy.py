"""Accuracy of a compressed model on a multiple-choice dataset, compared with the uncompressed model.

Owns the choice of a continuation and the figures computed from correct and wrong answers. Must not know how a
model is compressed, nor how likelihoods are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import fsum
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from repro import data
from repro.core.errors import InputError
from repro.core.registry import registered
from repro.data.config import scoring_of
from repro.data.prompts import Prompt
from repro.data.scoring import Choice, Named, Scoring, WholeText
from repro.methods.compression.base import Compressed, Compression
from repro.models.analysis.likelihood import Likelihood, Reader
from repro.records.build_cache import computed_once, memory_root
from repro.records.identity import dataset_asked
from repro.records.record import FEWEST, Round, Scalar, content_hash
from repro.scenarios.base import (
    WEIGHT_VERSIONS,
    Findings,
    Progress,
    appended_tokens,
    component,
    component_version,
    spreads,
)
from repro.scenarios.offline import OfflineScenario, dense_once

BASELINE = "fp16"
"""The compression that leaves the model unchanged: the baseline."""

Likelihoods = list[list[Likelihood]]
"""Log-likelihoods as `[example][continuation]`."""


class ScoredRows(NamedTuple):
    """Scores of all examples, and the figures that the compression reports."""

    scores: Likelihoods
    figures: Mapping[str, Scalar]


class AccuracyScenario(OfflineScenario):
    """The scenario selected by `compression=NAME`; see `OfflineScenario`."""

    group: ClassVar[str] = "compression"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "multiple_choice", "paired_difference")

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As `OfflineScenario`; also InputError for a dataset whose scoring has no continuations."""
        super().__init__(config)
        self.compression: Compression = self.component
        self.scoring = scoring_of(self.dataset)
        if not self.scoring.scores_continuations:
            kinds = ", ".join(n for n, kind in registered("scoring").items() if kind.scores_continuations)  # type: ignore[attr-defined]
            raise InputError(
                f"the answers of dataset {self.dataset.name!r} are generated, and compression={self.name} "
                f"scores given ones; choose a dataset whose scoring is {kinds}"
            )

    @property
    def reads_corpus(self) -> bool:
        """Whether the compression needs calibration data."""
        return self.compression.calibrated

    @cached_property
    def rows(self) -> data.Rows:
        """The evaluated examples: `prompts` of them after the first `skip`."""
        skip, count = self.config["skip"], self.config["prompts"]
        return data.rows_in_use(self.dataset, skip, count, self.config.get("data_dir"))

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The examples as prompts, tokenized by the target's tokenizer."""
        return data.prompts(self.dataset, self.rows, self.target.tokenizer)

    @property
    def inputs(self) -> dict[str, str]:
        """See `OfflineScenario`."""
        return super().inputs | {"dataset": self.rows.digest} | self._equal_choices

    @cached_property
    def _equal_choices(self) -> dict[str, str]:
        """Hash of the rows with equal choices, which rounding told apart before; empty if there are none."""
        choice_lists = [[(c.context, c.token_ids) for c in prompt.continuations] for prompt in self.prompts]
        rows = [row for row, choices in enumerate(choice_lists) if len({*choices}) < len(choices)]
        return {"equal choices": content_hash(rows)} if rows else {}

    @property
    def asked(self) -> dict[str, Any]:
        """See `OfflineScenario`."""
        dataset_settings = {"dataset": dataset_asked(self.config["dataset"])}
        return super().asked | dataset_settings | {name: self.config[name] for name in ("prompts", "skip")}

    @property
    def versions(self) -> dict[str, int]:
        """See `OfflineScenario`."""
        small_n = {"intervals": 2} if self.config["prompts"] < FEWEST else {}  # few rows had one before
        return super().versions | small_n

    def check(self) -> None:
        """As `OfflineScenario`; also InputError for an example longer than the target's context."""
        super().check()
        limit = self.target.decoder_config.max_positions
        length = max(len(c.context) + len(c.token_ids) for p in self.prompts for c in p.continuations)
        if limit is not None and length > limit:
            raise InputError(
                f"a row of dataset {self.dataset.name!r} has {length} tokens, which do not fit the context "
                f"of {self.target.config.name}, {limit} tokens"
            )

    def find(self, progress: Progress) -> Findings:
        """Score all examples with the uncompressed and with the compressed model."""
        baseline = self._baseline_rows(progress)
        rows = baseline if self.compression == self._baseline else self._score(self.compression, progress)
        result = findings(self.prompts, rows.scores, baseline.scores, self.metric, best_of(self.scoring))
        return replace(result, values={**result.values, **rows.figures})

    @property
    def metric(self) -> str:
        """The criterion for a correct answer: `acc`, `acc_norm` or `greedy`."""
        return metric_of(self.scoring)

    @cached_property
    def _baseline(self) -> Compression:
        baseline: Compression = component(self.group, {"name": BASELINE})
        return baseline

    def _baseline_rows(self, progress: Progress) -> ScoredRows:
        """Scores of the uncompressed model, cached on disk and shared by all its compressions."""
        versions = component_version(self.group, BASELINE) | WEIGHT_VERSIONS
        settings = self.target.digest, self.rows.digest, dataset_asked(self.config["dataset"])
        more_hashes = appended_tokens(self.target) | self._equal_choices
        key = content_hash([*settings, versions, *Likelihood._fields, *more_hashes.values()])

        path = memory_root() / "scores" / f"{key}.json"
        scores, figures = computed_once(path, lambda: self._score(self._baseline, progress))
        return ScoredRows([[Likelihood(*numbers) for numbers in row] for row in scores], figures)

    def _score(self, compression: Compression, progress: Progress) -> ScoredRows:
        """Score all examples with a compressed model.

        Examples are scored in the order of their tokens, so that common prefixes follow each other.
        """
        corpus = self.corpus.sequences if compression.calibrated else ()
        compressed = _compress(self.folder, self.target.digest, compression, corpus)  # type: ignore[arg-type]
        reader = Reader(compressed.decoder)
        pairs = [[(c.context, c.token_ids) for c in prompt.continuations] for prompt in self.prompts]
        scores: dict[int, list[Likelihood]] = {}
        for i in sorted(range(len(pairs)), key=pairs.__getitem__):
            progress("scoring", len(scores), len(pairs))
            scores[i] = reader.score(pairs[i])
        progress("scoring", len(scores), len(pairs))
        return ScoredRows([scores[i] for i in range(len(pairs))], compressed.figures)


@lru_cache(maxsize=1)
def _compress(
    folder: Path, digest: str, compression: Compression, corpus: tuple[tuple[int, ...], ...]
) -> Compressed:
    """Compress a checkpoint; the last result is cached, so that a sweep over datasets compresses once."""
    texts = [torch.tensor(sequence) for sequence in corpus]
    return compression.compress(dense_once(folder, digest), texts)


def metric_of(scoring: Scoring) -> str:
    """The criterion for a correct answer: `acc` or `acc_norm` of a `Choice`, `greedy`, or `none`."""
    if isinstance(scoring, WholeText):
        return "none"
    return scoring.metric if isinstance(scoring, Choice) else "greedy"


def best_of(scoring: Scoring) -> int:
    """The k of top-k accuracy: `best` of a `Named` scoring, else 1."""
    return scoring.best if isinstance(scoring, Named) else 1


def findings(
    prompts: Sequence[Prompt], scores: Likelihoods, baseline: Likelihoods, metric: str, top_count: int = 1
) -> Findings:
    """The figures of a model's likelihoods, compared with a baseline's on the same examples.

    `accuracy` is top-`top_count` accuracy; `acc` and `acc_norm` are top-1. A text that is scored whole
    (`none`) has nats alone, and one with a single continuation (`greedy`) has them as well.
    """
    if metric == "none":
        lines = [_likelihood_line(*row) for row in zip(prompts, scores, baseline, strict=True)]
        return Findings({**_nats(lines), "rows": len(lines)}, {}, lines)
    from repro.metrics.base import score  # late: the metrics' library takes seconds to import

    hits, base_hits = (
        [int(is_right(prompt, row, metric, top_count)) for prompt, row in zip(prompts, rows, strict=True)]
        for rows in (scores, baseline)
    )
    figures = score(["accuracy"], {"correct": hits})
    values: dict[str, Scalar] = {**figures, "baseline_accuracy": 100.0 * mean(base_hits)}
    values |= _choice_figures(prompts, scores, top_count) if metric != "greedy" else {"chance": None}
    paired = {"values": [100.0 * hit for hit in hits], "baseline_values": [100.0 * hit for hit in base_hits]}
    values |= score(["paired_difference"], paired)
    values |= {"flips": sum(a != b for a, b in zip(hits, base_hits, strict=True)), "rows": len(hits)}
    rounds: list[dict[str, Scalar]] = [
        {"id": prompt.id, "right": a, "baseline_right": b, "choice": choice(prompt, row, metric)}
        for prompt, row, a, b in zip(prompts, scores, hits, base_hits, strict=True)
    ]
    if metric == "greedy":
        for line, prompt, row, base_row in zip(rounds, prompts, scores, baseline, strict=True):
            last_tokens = int(row[0].last), int(base_row[0].last)
            line |= _likelihood_line(prompt, row, base_row) | dict(zip(LAST_FIELDS, last_tokens, strict=True))
        values |= _nats(rounds)
        last_share, base_last_share = (mean(100.0 * bool(line[n]) for line in rounds) for n in LAST_FIELDS)
        values |= {"last_token": last_share, "last_token_difference": last_share - base_last_share}
    return Findings(values, spreads(values, len(hits)), rounds)


LAST_FIELDS = ("last_right", "baseline_last")
"""Entries of a line: whether the last token is the likeliest one, compressed and not."""

NATS_DIGITS = 4
"""Digits of a text's nats, from which the figures are computed."""


def _likelihood_line(
    prompt: Prompt, row: Sequence[Likelihood], baseline_row: Sequence[Likelihood]
) -> dict[str, Scalar]:
    """Nats of an example's only continuation, compressed and not, and its tokens."""
    nats, baseline = (-round(each[0].nats, NATS_DIGITS) for each in (row, baseline_row))
    (continuation,) = prompt.continuations
    token_count = len(continuation.token_ids)
    return {"id": prompt.id, "nats": nats, "baseline_nats": baseline, "tokens": token_count}


def _nats(lines: Sequence[Round]) -> dict[str, Scalar]:
    """Nats a token over all lines, and how many more than the uncompressed model's."""
    sums = {
        name: fsum(float(line[name] or 0) for line in lines) for name in ("nats", "baseline_nats", "tokens")
    }
    per_token = sums["nats"] / sums["tokens"]
    loss = (sums["nats"] - sums["baseline_nats"]) / sums["tokens"]
    return {"nats_per_token": per_token, "nats_lost": loss, "scored_tokens": int(sums["tokens"])}


def _choice_figures(prompts: Sequence[Prompt], scores: Likelihoods, top_count: int) -> dict[str, Scalar]:
    """`acc`, `acc_norm` with their standard errors, and the accuracy of random guessing."""
    from repro.metrics.base import score

    outcome: dict[str, list[Any]] = {
        "loglikelihoods": [[likelihood.nats for likelihood in row] for row in scores],
        "lengths": [_lengths(prompt) for prompt in prompts],
        "answers": [prompt.answer for prompt in prompts],
    }
    chance = 100.0 * mean(top_count / len(prompt.continuations) for prompt in prompts)
    return {**score(["multiple_choice"], outcome), "chance": chance}


def _lengths(prompt: Prompt) -> list[int]:
    return [len(c.text.encode()) for c in prompt.continuations]


def choice(prompt: Prompt, row: Sequence[Likelihood], metric: str) -> int | None:
    """Index of the chosen continuation; None if the only continuation is not the greedy one."""
    return next(iter(_ranking(prompt, row, metric)), None)


def is_right(prompt: Prompt, row: Sequence[Likelihood], metric: str, top_count: int) -> bool:
    """Whether an example's correct continuation is among the `top_count` likeliest."""
    return prompt.answer in _ranking(prompt, row, metric)[:top_count]


def _ranking(prompt: Prompt, row: Sequence[Likelihood], metric: str) -> list[int]:
    """Indices of continuations by falling likelihood, ties by index.

    With `greedy`, `[0]` if the only continuation is the greedy one, else empty.
    """
    if metric == "greedy":
        return [0] if row[0].greedy else []
    nats = np.array([likelihood.nats for likelihood in row])
    ranking: list[int] = np.argsort(
        -nats / _lengths(prompt) if metric == "acc_norm" else -nats, kind="stable"
    ).tolist()
    return ranking
