"""Acceptance of draft tokens by the target.

Owns the project's definition of acceptance length. Must not know how drafts are made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.metrics.base import INTEGERS, Metric, Scores, require_rows


@register("metric", "acceptance")
class Acceptance(Metric):
    """Acceptance figures, as ratios of totals within a cell, not means of means.

    The definition, for every method and every table of this project:

    - `acceptance_length` is the number of tokens emitted per target verification, including the target's own
      (bonus) token. It is exactly 1 without a draft.
    - `accepted_draft_tokens` is the number of draft tokens among them, without the bonus token. It is the
      acceptance length minus 1, except if an output ends within a verification, before the bonus token.
    - `acceptance_histogram[k]` counts the verifications that accepted exactly k draft tokens, k = 0, 1, ...
    - `acceptance_by_position[k]` is the share of verifications that accepted more than k draft tokens: how
      often the draft token at depth k + 1 was emitted.

    A verification is one forward pass of the target over draft tokens, or over a single token. The prefill is
    not a verification, and its token belongs to none. Tokens cut off at the output's end count as neither
    accepted nor emitted. Of a tree, only the accepted path counts.

    Inputs, one list per prompt with one entry per verification: `accepted`, draft tokens accepted and
    emitted; `emitted`, all tokens emitted.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"accepted": INTEGERS, "emitted": INTEGERS}
    unit: ClassVar[str] = "tokens"

    def _compute(self, accepted: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> Scores:
        accepted_counts = [n for row in accepted for n in row]
        emitted_counts = [n for row in emitted for n in row]
        require_rows(accepted_counts, "acceptance")
        _check(accepted_counts, emitted_counts)
        counts = Counter(accepted_counts)
        histogram = [counts[k] for k in range(max(counts) + 1)]
        round_count = len(accepted_counts)
        return {
            "acceptance_length": sum(emitted_counts) / round_count,
            "accepted_draft_tokens": sum(accepted_counts) / round_count,
            "acceptance_histogram": histogram,
            "acceptance_by_position": [
                sum(histogram[k + 1 :]) / round_count for k in range(len(histogram) - 1)
            ],
        }


@register("metric", "draft_correctness")
class DraftCorrectness(Metric):
    """Percentage of draft tokens that the target accepted, with the standard error in percentage points.

    For a method that drafts one token after each token of the target's own text, this is the draft's accuracy
    after a correct prefix: the greedy agreement of EdgeLLM's Table I.

    Inputs, one list per prompt with one entry per verification: `drafted`, number of draft tokens;
    `accepted`, number of them that were accepted and emitted.
    """

    inputs: ClassVar[Mapping[str, Any]] = {"drafted": INTEGERS, "accepted": INTEGERS}
    unit: ClassVar[str] = "%"

    def _compute(self, drafted: Sequence[Sequence[int]], accepted: Sequence[Sequence[int]]) -> Scores:
        drafted_count, accepted_count = (
            sum(n for row in counts_by_text for n in row) for counts_by_text in (drafted, accepted)
        )
        require_rows([n for row in drafted for n in row], "draft_correctness")
        if not 0 <= accepted_count <= drafted_count or not drafted_count:
            raise InputError(
                f"{accepted_count} of {drafted_count} drafted tokens were accepted, which is no share"
            )
        share = accepted_count / drafted_count
        error = 100 * math.sqrt(share * (1 - share) / (drafted_count - 1)) if drafted_count > 1 else None
        return {"draft_correctness": 100 * share, "draft_correctness_stderr": error}


def _check(accepted_list: Sequence[int], emissions: Sequence[int]) -> None:
    """InputError unless each verification emits its accepted draft tokens and at most one more."""
    if len(accepted_list) != len(emissions):
        raise InputError(
            f"{len(accepted_list)} verifications accepted tokens and {len(emissions)} emitted some"
        )
    for i, (n, total) in enumerate(zip(accepted_list, emissions, strict=True)):
        if n < 0 or total - n not in (0, 1):
            raise InputError(
                f"verification {i} accepted {n} draft tokens and emitted {total} tokens, not {n} or {n + 1}"
            )
