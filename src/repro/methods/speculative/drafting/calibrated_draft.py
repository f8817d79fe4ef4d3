"""A draft, or Medusa heads, calibrated to a given agreement with their target; a draft also in its
confidences.

The target's choice takes the first place in some contexts, or a random rank of a head, and a temperature
brings the mean confidence of first choices to the agreement: a draft that is right in 87% of contexts then
says so. The target is an oracle here and never billed. Must not know about papers, devices or costs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import accumulate

from repro.core.errors import InputError
from repro.models.forward.network import LateLogits, Logits, Network, RewrittenStep, Step, rows_of
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.02, 20.0
"""Temperatures between which a draft's is searched."""

ACCURACY = 1e-3
"""Largest error of a temperature's logarithm."""

BIN_COUNT = 10
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
        self, draft: Network, target: Network, probability: float, seed: int, temperature: float = 1.0
    ) -> None:
        """`target` has a separate cache; it runs only in the selected contexts."""
        self._draft, self._temperature = draft, temperature
        self._oracle = target
        self._probability = probability
        self._seed = seed
        self.depth = draft.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`; starts both networks."""
        self._draft.start(prompt)
        self._oracle.start(prompt)

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass of the draft; the oracle runs when the logits are read."""
        swap_contexts = [context for context in prefixes if coin(context, self._seed) < self._probability]
        step = self._draft.begin(prefixes, branches)
        return RewrittenStep(step, prefixes, partial(self._rewrite, swap_contexts))

    def keep(self, text: Prefix) -> None:
        """See `Network`; applies to both networks."""
        self._draft.keep(text)
        self._oracle.keep(text)

    def _rewrite(
        self, swap_contexts: Sequence[Prefix], contexts: Sequence[Prefix], rows: list[Logits]
    ) -> list[Logits]:
        """The draft's rows with the target's choice first in swapped contexts, all at the temperature."""
        if swap_contexts:
            oracle_rows = zip(swap_contexts, rows_of(self._oracle, swap_contexts), strict=True)
            choices = {context: row.choice for context, row in oracle_rows}
            pairs = zip(contexts, rows, strict=True)
            rows = [with_first(row, choices[at]) if at in choices else row for at, row in pairs]
        if self._temperature == 1.0:
            return rows
        return [LateLogits(partial(temper, row, self._temperature)) for row in rows]


def coin(context: Prefix, *seeds: int) -> float:
    """A pseudorandom number in [0, 1) from a context's tokens and one or more seeds."""
    digest = blake2b(b"".join(b"%d " % seed for seed in seeds) + context.digest, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def with_first(row: Logits, token: int) -> Logits:
    """Swap the top token with `token`; the sorted log-probabilities stay unchanged.

    If `token` is not among the kept ranks, it replaces the top token.
    """
    tokens, logps = row.top_ranks()
    if tokens[0] == token:
        return row
    order = [tokens[0] if ranked_token == token else ranked_token for ranked_token in tokens]
    return Logits(None, ([token, *order[1:]], logps))


def temper(row: Logits, temperature: float) -> Logits:
    """The row at a temperature: the same order, its log-probabilities divided and normalized again.

    Tokens beyond the kept ranks are taken to be as probable as the last of these.
    """
    tokens, logps = row.top_ranks()
    top_logp = logps[0]
    last = math.exp(logps[-1] - top_logp)
    rest = max(0.0, 1.0 - ROUNDING - sum(map(math.exp, logps))) * math.exp(-top_logp) / last if last else 0.0
    powers = [(logp - top_logp) / temperature for logp in logps]
    total = math.log(sum(map(math.exp, powers)) + rest * math.exp(powers[-1]))
    return Logits(None, (tokens, [power - total for power in powers]))


def mean_confidence(rows: Sequence[Logits], temperature: float) -> float:
    """The mean probability of the first choices of rows at a temperature."""
    return sum(math.exp(temper(row, temperature).top_ranks()[1][0]) for row in rows) / len(rows)


def calibration_error(rows: Sequence[Logits], hits: Sequence[bool], temperature: float) -> float:
    """The expected calibration error of first choices: |share right - mean confidence| over `BIN_COUNT` bins.

    Args:
        rows: what the draft said.
        hits: whether each row's first choice is the target's.
        temperature: of the rows.
    """
    bins: dict[int, list[float]] = {}
    for row, is_right in zip(rows, hits, strict=True):
        confidence = math.exp(temper(row, temperature).top_ranks()[1][0])
        bins.setdefault(min(int(confidence * BIN_COUNT), BIN_COUNT - 1), []).append(is_right - confidence)
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(rows)


def temperature_for(rows: Sequence[Logits], confidence: float) -> float:
    """The temperature, to `ACCURACY`, at which the mean confidence of rows' first choices is `confidence`.

    Raises:
        InputError: none between `LOWEST_TEMPERATURE` and `HIGHEST_TEMPERATURE` reaches it.
    """
    low, high = math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)
    if (
        not mean_confidence(rows, HIGHEST_TEMPERATURE)
        <= confidence
        <= mean_confidence(rows, LOWEST_TEMPERATURE)
    ):
        raise InputError(
            f"no temperature from {LOWEST_TEMPERATURE} to {HIGHEST_TEMPERATURE} brings the draft's mean "
            f"confidence ({mean_confidence(rows, 1.0):.3g} on the calibration tokens) to {confidence:.3g}; "
            "choose draft_calibration=choices, which keeps its confidences"
        )
    while high - low > ACCURACY:
        middle = (low + high) / 2
        low, high = (middle, high) if mean_confidence(rows, math.exp(middle)) > confidence else (low, middle)
    return math.exp((low + high) / 2)


def swap_probability(own_agreement: float, agreement: float, error: float = 0.0) -> float:
    """The swap probability that raises an agreement of `own_agreement` to `agreement`.

    A swap changes nothing where the draft already agrees, so native + (1 - native) p = agreement. Nothing is
    swapped in a draft that agrees more often by no more than two standard errors.

    Args:
        own_agreement: share of contexts in which the draft's own top token is the target's.
        agreement: the share to reach.
        error: standard error of `own_agreement`.

    Raises:
        InputError: the draft already agrees more often than wanted.
    """
    if agreement < own_agreement <= agreement + 2 * error:
        return 0.0
    if own_agreement > agreement:
        raise InputError(
            f"the draft agrees with its target in {own_agreement:.1%} of the calibration tokens, more than "
            f"the {agreement:.1%} that it is to be matched to; choose a weaker draft, or "
            "calibrate_draft_to=null"
        )
    return 0.0 if own_agreement == agreement else (agreement - own_agreement) / (1 - own_agreement)


class MatchedHeads:
    """A Medusa network that places the target's token at a random rank, drawn per feature and head.

    The random numbers are independent and depend only on the feature's text, the head and a seed. So a head
    predicts the same in every tree and method, and a path is accepted with the product of its accuracies.
    Greedy decoding only: logits have ranks but no values.
    """

    def __init__(
        self, draft: Network, oracle: Network, accuracies: Sequence[Sequence[float]], seed: int
    ) -> None:
        """Args:
        draft: the uncalibrated heads; their other tokens keep their order.
        oracle: the target with a separate cache.
        accuracies: `[head][rank]`: probability that the token at that rank is the target's; the remainder to
            1 is the probability that none is.
        seed: of the random ranks.
        """
        self._draft = draft
        self._oracle = oracle
        self._sums = [list(accumulate(head)) for head in accuracies]
        self._seed = seed
        self._lineage = MedusaLineage(0, len(self._sums))
        self._choices: dict[Prefix, int] = {}
        self.depth = draft.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`; starts both networks."""
        self._lineage = MedusaLineage(prompt.length, len(self._sums))
        self._choices.clear()
        self._draft.start(prompt)
        self._oracle.start(prompt)

    def begin(self, wanted_prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass of the heads; the oracle runs when the logits are read."""
        step = self._draft.begin(wanted_prefixes, branches)
        return RewrittenStep(step, wanted_prefixes, lambda texts, rows: list(map(self.rewrite, texts, rows)))

    def keep(self, text: Prefix) -> None:
        """See `Network`; applies to both networks."""
        self._lineage.keep(text)
        self._draft.keep(text)
        self._oracle.keep(text)

    def rewrite(self, prefix: Prefix, row: Logits) -> Logits:
        """A head's logits with the target's token moved to the random rank."""
        feature, head = self._lineage.root_and_head(prefix)
        rank = bisect_right(self._sums[head], coin(feature, self._seed, head))
        token = self._ahead(prefix.up_to(feature.length + 1), head)
        return with_rank(row, token, rank if rank < len(self._sums[head]) else None)

    def _ahead(self, root: Prefix, head: int) -> int:
        """The target's greedy token `head + 1` places after a text."""
        for _ in range(head):
            root = root.then(self._choice(root))
        return self._choice(root)

    def _choice(self, text: Prefix) -> int:
        if text not in self._choices:
            self._choices[text] = rows_of(self._oracle, [text])[0].choice
        return self._choices[text]


def with_rank(row: Logits, token: int, rank: int | None) -> Logits:
    """Move a token to a rank, or with `None` remove it from the kept ranks.

    The other tokens keep their order, and the sorted log-probabilities stay as they were.
    """
    tokens, logps = row.top_ranks()
    order = [other for other in tokens if other != token]
    if rank is not None:
        order.insert(rank, token)
    count = min(len(order), len(logps))
    return Logits(None, (order[:count], logps[:count]))
