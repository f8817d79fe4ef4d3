"""A draft calibrated to a given agreement with its target, in its choices and in its confidences.

The target's choice takes the first place in some contexts, and a temperature brings the mean confidence of
first choices to the agreement: a draft that is right in 87% of contexts then says so. The target is an oracle
here and never billed. Must not know about papers, devices or costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from repro.core.errors import InputError
from repro.models.forward.network import LateLogits, Logits, Network, RewrittenStep, Step, rows_of
from repro.models.tokens.prefix import Prefix

COLDEST, WARMEST = 0.02, 20.0
"""Temperatures between which a draft's is searched."""

ACCURACY = 1e-3
"""Largest error of a temperature's logarithm."""

BINS = 10
"""Equal parts of the confidences over which a calibration error is taken."""

ROUNDING = 1e-6
"""What single precision may lack of a sum of probabilities."""


class MatchedNetwork:
    """A draft network that ranks the target's choice first in a random subset of contexts.

    The random number depends only on the context's tokens and a seed. So a context has the same ranks in
    every method, on every device, on and off the accepted path, and a larger probability keeps all swaps of
    a smaller one. All rows are at one temperature. Greedy decoding only: swapped logits have ranks but no
    values.
    """

    def __init__(
        self, draft: Network, oracle: Network, probability: float, seed: int, temperature: float = 1.0
    ) -> None:
        """`oracle` is the target with a separate cache; it runs only in the selected contexts."""
        self._draft, self._temperature = draft, temperature
        self._oracle = oracle
        self._probability = probability
        self._seed = seed
        self.depth = draft.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`; starts both networks."""
        self._draft.start(prompt)
        self._oracle.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass of the draft; the oracle runs when the logits are read."""
        swapped = [context for context in wanted if coin(context, self._seed) < self._probability]
        step = self._draft.begin(wanted, branches)
        return RewrittenStep(step, wanted, partial(self._rewrite, swapped))

    def keep(self, text: Prefix) -> None:
        """See `Network`; applies to both networks."""
        self._draft.keep(text)
        self._oracle.keep(text)

    def _rewrite(
        self, swapped: Sequence[Prefix], contexts: Sequence[Prefix], rows: list[Logits]
    ) -> list[Logits]:
        """The draft's rows with the target's choice first in swapped contexts, all at the temperature."""
        if swapped:
            oracle_rows = zip(swapped, rows_of(self._oracle, swapped), strict=True)
            choices = {context: row.choice for context, row in oracle_rows}
            pairs = zip(contexts, rows, strict=True)
            rows = [with_first(row, choices[at]) if at in choices else row for at, row in pairs]
        if self._temperature == 1.0:
            return rows
        return [LateLogits(partial(temper, row, self._temperature)) for row in rows]


def coin(context: Prefix, seed: int) -> float:
    """A pseudorandom number in [0, 1) from a context's tokens and a seed."""
    hashed = blake2b(b"%d " % seed + context.digest, digest_size=8).digest()
    return int.from_bytes(hashed, "little") / 2**64


def with_first(row: Logits, token: int) -> Logits:
    """Swap the top token with `token`; the sorted log-probabilities stay unchanged.

    If `token` is not among the kept ranks, it replaces the top token.
    """
    tokens, logps = row.top_ranks()
    if tokens[0] == token:
        return row
    order = [tokens[0] if other == token else other for other in tokens]
    return Logits(None, ([token, *order[1:]], logps))


def temper(row: Logits, temperature: float) -> Logits:
    """The row at a temperature: the same order, its log-probabilities divided and normalized again.

    Tokens beyond the kept ranks are taken to be as probable as the last of these.
    """
    tokens, logps = row.top_ranks()
    first = logps[0]
    last = math.exp(logps[-1] - first)
    beyond = max(0.0, 1.0 - ROUNDING - sum(map(math.exp, logps))) * math.exp(-first) / last if last else 0.0
    powers = [(logp - first) / temperature for logp in logps]
    total = math.log(sum(map(math.exp, powers)) + beyond * math.exp(powers[-1]))
    return Logits(None, (tokens, [power - total for power in powers]))


def mean_confidence(rows: Sequence[Logits], temperature: float) -> float:
    """The mean probability of the first choices of rows at a temperature."""
    return sum(math.exp(temper(row, temperature).top_ranks()[1][0]) for row in rows) / len(rows)


def calibration_error(rows: Sequence[Logits], right: Sequence[bool], temperature: float) -> float:
    """The expected calibration error of first choices: |share right - mean confidence| over `BINS` bins.

    Args:
        rows: what the draft said.
        right: whether each row's first choice is the target's.
        temperature: of the rows.
    """
    bins: dict[int, list[float]] = {}
    for row, hit in zip(rows, right, strict=True):
        confidence = math.exp(temper(row, temperature).top_ranks()[1][0])
        bins.setdefault(min(int(confidence * BINS), BINS - 1), []).append(hit - confidence)
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(rows)


def temperature_for(rows: Sequence[Logits], confidence: float) -> float:
    """The temperature, to `ACCURACY`, at which the mean confidence of rows' first choices is `confidence`.

    Raises:
        InputError: none between `COLDEST` and `WARMEST` reaches it.
    """
    low, high = math.log(COLDEST), math.log(WARMEST)
    if not mean_confidence(rows, WARMEST) <= confidence <= mean_confidence(rows, COLDEST):
        raise InputError(
            f"no temperature from {COLDEST} to {WARMEST} brings the draft's mean confidence "
            f"({mean_confidence(rows, 1.0):.3g} on the calibration tokens) to {confidence:.3g}; choose "
            "draft_calibration=choices, which keeps its confidences"
        )
    while high - low > ACCURACY:
        middle = (low + high) / 2
        low, high = (middle, high) if mean_confidence(rows, math.exp(middle)) > confidence else (low, middle)
    return math.exp((low + high) / 2)


def swap_probability(native: float, agreement: float, error: float = 0.0) -> float:
    """The swap probability that raises an agreement of `native` to `agreement`.

    A swap changes nothing where the draft already agrees, so native + (1 - native) p = agreement. Nothing is
    swapped in a draft that agrees more often by no more than two standard errors.

    Args:
        native: share of contexts in which the draft's own top token is the target's.
        agreement: the share to reach.
        error: standard error of `native`.

    Raises:
        InputError: the draft already agrees more often than wanted.
    """
    if agreement < native <= agreement + 2 * error:
        return 0.0
    if native > agreement:
        raise InputError(
            f"the draft agrees with its target in {native:.1%} of the calibration tokens, more than the "
            f"{agreement:.1%} that it is to be matched to; choose a weaker draft, or calibrate_draft_to=null"
        )
    return 0.0 if native == agreement else (agreement - native) / (1 - native)
