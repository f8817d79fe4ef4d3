"""Answers against the target's own greedy text: how close they are, and that lossless means lossless.

Knows nothing of devices' time, of records or of sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from repro.core.registry import discover
from repro.methods.base import Generation, Request
from repro.models.forward.exactness import divergence
from repro.models.forward.greedy import greedy_tokens
from repro.models.forward.network import Network
from repro.records.record import Scalar
from repro.scenarios.generation import figures

AGAINST_TARGET = ("rouge_l", "rouge_l_tokens", "exact_match")


class NotLosslessError(RuntimeError):
    """A method that claims the target's own text gave another one, and rounding does not explain it."""


def own_answers(
    network: Network, requests: Sequence[Request], told: Callable[[int], None]
) -> list[list[int]]:
    """The target's own greedy tokens for each request, decoded one by one."""
    out = []
    for i, request in enumerate(requests):
        told(i)
        out.append(greedy_tokens(network, request.prefix, request.max_tokens, request.stop))
    told(len(requests))
    return out


def scores(
    generations: Sequence[Generation],
    own: Sequence[Sequence[int]] | None,
    text_of: Callable[[Sequence[int]], str],
    metrics: Sequence[str] = (),
    verified: bool = True,
    round_metric: str = "acceptance",
) -> dict[str, Scalar]:
    """What the rounds amount to if a target verified; metrics against its own answers if given; the rest."""
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


def require_lossless(
    generations: Sequence[Generation], own: Sequence[Sequence[int]], network: Network, dtype: str
) -> int:
    """How many answers part from the target's own at a tie.

    Raises:
        NotLosslessError: one parts where there is no tie.
    """
    ties = 0
    for generation, tokens in zip(generations, own, strict=True):
        found = divergence(generation.request.prompt, generation.tokens, tokens, network, dtype)
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
