"""Compare answers with the target's own greedy text, and check that lossless methods are lossless.

Must not know device time, records or sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from repro.core.registry import discover
from repro.methods.base import Generation
from repro.models.forward.exactness import divergence
from repro.models.forward.side_by_side import GreedyText
from repro.records.record import Scalar
from repro.scenarios.generation import figures

AGAINST_TARGET = ("rouge_l", "rouge_l_tokens", "exact_match")


class NotLosslessError(RuntimeError):
    """A lossless method's answer differs from the target's greedy text by more than rounding explains."""


def ended(tokens: Sequence[int], stop: Container[int]) -> list[int]:
    """A text up to its first stop token, which is included."""
    end = next((i for i, token in enumerate(tokens) if token in stop), len(tokens))
    return list(tokens[: end + 1])


def scores(
    generations: Sequence[Generation],
    own: Sequence[Sequence[int]] | None,
    text_of: Callable[[Sequence[int]], str],
    metrics: Sequence[str] = (),
    verified: bool = True,
    round_metric: str = "acceptance",
) -> dict[str, Scalar]:
    """Compute the metrics of answers.

    Args:
        generations: the answers.
        own: the target's own answers; None skips the metrics that compare with them.
        text_of: decodes token ids.
        metrics: further metrics.
        verified: whether a target verified the answers; without one `round_metric` is skipped.
        round_metric: the metric over verifications.
    """
    from repro.metrics.base import score

    discover("repro.metrics")
    names = [round_metric] if verified and any(r.rows for g in generations for r in g.rounds) else []
    seen: dict[str, list[Any]] = dict(figures.outcome(generations))
    if own is not None:
        seen["references"] = list(own)
        for kind in ("prediction", "reference"):
            seen[f"{kind}_texts"] = [text_of(tokens) for tokens in seen[f"{kind}s"]]
        names += AGAINST_TARGET
    return {name: _plain(value) for name, value in score([*names, *metrics], seen).items()}


def require_lossless(generations: Sequence[Generation], own: Sequence[GreedyText], dtype: str) -> int:
    """Count the answers that diverge from the target's own at a tie of logits.

    Raises:
        NotLosslessError: an answer diverges where there is no tie.
    """
    ties = 0
    for generation, text in zip(generations, own, strict=True):
        request = generation.request
        tokens = ended(text.tokens[: request.max_tokens], request.stop)
        found = divergence(generation.tokens, tokens, text.rows.__getitem__, dtype)
        if found and not found.tie:
            raise NotLosslessError(
                f"answer {generation.request.id} leaves the target's own text at token {found.position}, "
                f"where the target prefers its own token by {found.margin:.3g} in logits ({dtype})"
            )
        ties += found is not None
    return ties


def _plain(value: Any) -> Scalar:
    plain: Scalar = " ".join(map(str, value)) if isinstance(value, list) else value
    return plain
