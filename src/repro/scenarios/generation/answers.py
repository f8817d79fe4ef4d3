"""How good answers are: against the target's own greedy text and the task, as figures and as lines.

Owns the check that a lossless method is lossless, and the lines that a record keeps of answers. A line holds
nothing of a dataset: an example is named by its index and its hash. Must not know device time or sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from repro.core.registry import discover
from repro.data.template import Row
from repro.methods.base import Generation, Request
from repro.metrics.text import rouge_by_prompt
from repro.models.forward.exactness import divergence
from repro.models.forward.side_by_side import GreedyText
from repro.records.record import Scalar, Spread, content_hash
from repro.scenarios.generation import figures, task_scores
from repro.scenarios.generation.asked import TARGET_METRICS, GenerationCell

Line = dict[str, Scalar]


class NotLosslessError(RuntimeError):
    """A lossless method's answer differs from the target's greedy text by more than rounding explains."""


@dataclass(frozen=True)
class Quality:
    """How good answers are: figures, standard errors or intervals, a line per answer, notes for readers."""

    values: Mapping[str, Scalar]
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    notes: Sequence[str] = ()


def quality(
    cell: GenerationCell, generations: Sequence[Generation], texts: Sequence[GreedyText] | None
) -> Quality:
    """Compare answers with the target's own texts, which a lossless method's must equal, and with the task.

    Raises:
        NotLosslessError: as `require_lossless`.
    """
    references = None
    if texts is not None:
        pairs = zip(texts, generations, strict=True)
        references = [answer_of(text, answer.request) for text, answer in pairs]
    decode = str if cell.cost_only else cell.target.tokenizer.decode
    verified = "target" in cell.places
    values = scores(generations, references, decode, cell.plain_metrics, verified, cell.method.round_metric)
    if texts is not None and cell.method.lossless:
        values["ties"] = require_lossless(generations, texts, cell.target.computes_in)
    if cell.cost_only:
        return Quality(values)
    answer_texts = [decode(answer.tokens) for answer in generations]
    target_texts = None if references is None else [decode(tokens) for tokens in references]
    rows = cell.rows.rows
    judged = task_scores.score_answers(cell.task_metrics, cell.dataset, rows, answer_texts, target_texts)
    values |= task_scores.evaluate_answers(cell.evaluated, cell.dataset, rows, answer_texts)
    answers = lines(generations, answer_texts, references, target_texts, rows, cell.config["skip"])
    if target_texts is not None:
        for line, share in zip(answers, rouge_by_prompt(answer_texts, target_texts), strict=True):
            line["rouge_l"] = 100.0 * share
    notes = []
    if judged.answers:
        for line, scores_of_line in zip(answers, judged.answers, strict=True):
            line |= scores_of_line
        if cut_count := sum(map(is_cut, generations)):
            notes = [
                f"{cut_count} of {len(answers)} answers were cut at max_tokens and are scored as they stand"
            ]
    return Quality(values | dict(judged.values), judged.uncertainty, answers, notes)


def until_stop(tokens: Sequence[int], stop: Container[int]) -> list[int]:
    """A text up to its first stop token, which is included."""
    end = next((i for i, token in enumerate(tokens) if token in stop), len(tokens))
    return list(tokens[: end + 1])


def answer_of(text: GreedyText, request: Request) -> list[int]:
    """A model's own answer to a request: its greedy text, cut where answers end."""
    return until_stop(text.tokens[: request.max_tokens], request.stop)


def scores(
    generations: Sequence[Generation],
    references: Sequence[Sequence[int]] | None,
    text_of: Callable[[Sequence[int]], str],
    metrics: Sequence[str] = (),
    verified: bool = True,
    round_metric: str = "acceptance",
) -> dict[str, Scalar]:
    """Compute the metrics of answers.

    Args:
        generations: the answers.
        references: the target's own answers; None skips the metrics that compare with them.
        text_of: decodes token ids.
        metrics: further metrics.
        verified: whether a target verified the answers; without one `round_metric` is skipped.
        round_metric: the metric over verifications.
    """
    from repro.metrics.base import score

    discover("repro.metrics")
    names = [round_metric] if verified and any(r.rows for g in generations for r in g.rounds) else []
    outcome: dict[str, list[Any]] = dict(figures.outcome(generations))
    if references is not None:
        outcome["references"] = list(references)
        for kind in ("prediction", "reference"):
            outcome[f"{kind}_texts"] = [text_of(tokens) for tokens in outcome[f"{kind}s"]]
        names += TARGET_METRICS
    values = score([*names, *metrics], outcome)
    return {n: " ".join(map(str, v)) if isinstance(v, list) else v for n, v in values.items()}


def require_lossless(generations: Sequence[Generation], texts: Sequence[GreedyText], dtype: str) -> int:
    """Count the answers that diverge from the target's own at a tie of logits.

    Raises:
        NotLosslessError: an answer diverges where there is no tie.
    """
    tie_count = 0
    for answer, text in zip(generations, texts, strict=True):
        reference = answer_of(text, answer.request)
        departure = divergence(answer.tokens, reference, text.rows.__getitem__, dtype)
        if departure and not departure.tie:
            raise NotLosslessError(
                f"answer {answer.request.id} leaves the target's own text at token {departure.position}, "
                f"where the target prefers its own token by {departure.margin:.3g} in logits ({dtype})"
            )
        tie_count += departure is not None
    return tie_count


def lines(
    generations: Sequence[Generation],
    texts: Sequence[str],
    references: Sequence[Sequence[int]] | None,
    target_texts: Sequence[str] | None,
    rows: Sequence[Row],
    skipped: int = 0,
) -> list[Line]:
    """One line per answer.

    Args:
        generations: a method's answers.
        texts: their texts.
        references: token ids of the target's own answers; None if there are none.
        target_texts: their texts.
        rows: the example of each answer.
        skipped: number of examples before the first one in use.

    Returns:
        `request`, `row` (index among the dataset's selected examples) and `row_hash`; `text`, `tokens` (ids,
        separated by spaces) and `cut` (1 if the answer reached `max_tokens` before its end, else 0);
        `target_text` and `target_tokens`, `None` if the target's own text is not known.
    """
    return [
        {
            "request": answer.request.id,
            "row": skipped + i,
            "row_hash": row_hash(row),
            "text": text,
            "tokens": ids(answer.tokens),
            "cut": int(is_cut(answer)),
            "target_text": None if target_texts is None else target_texts[i],
            "target_tokens": None if references is None else ids(references[i]),
        }
        for i, (answer, text, row) in enumerate(zip(generations, texts, rows, strict=True))
    ]


def row_hash(row: Row) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of an example's columns in use."""
    return content_hash(dict(row))[:16]


def is_cut(answer: Generation) -> bool:
    """Whether an answer reached `max_tokens` before its end."""
    request = answer.request
    return len(answer.tokens) >= request.max_tokens and answer.tokens[-1] not in request.stop


def ids(tokens: Sequence[int]) -> str:
    """Token ids as a text, separated by spaces."""
    return " ".join(map(str, tokens))


def first_difference(tokens: str, other_tokens: str) -> int | None:
    """The position of the first token that differs between two texts of token ids; None if they are equal."""
    pairs = zip_longest(tokens.split(), other_tokens.split())
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)
