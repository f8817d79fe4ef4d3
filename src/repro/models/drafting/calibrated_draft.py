"""A draft that agrees with its target as often as wanted: in some contexts its first choice is the target's.

Knows nothing of papers, devices or costs: the target that is asked here is an oracle and never billed.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from repro.core.errors import InputError
from repro.models.forward.network import Logits, Network, Step
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.layer import LayerWeights


class MatchedNetwork:
    """A draft's network in which, by a coin for each context, the target's choice takes the first place.

    The coin depends on the context's tokens and a seed alone, so a context has the same row in every method,
    on every device, on and off the accepted path; and a larger probability keeps all swaps of a smaller one.
    Greedy decoding only: a swapped row has ranks and no logits.
    """

    def __init__(self, draft: Network, oracle: Network, probability: float, seed: int) -> None:
        """`oracle` is the target with a cache of its own, asked only where the coin says so."""
        self._draft = draft
        self._oracle = oracle
        self._probability = probability
        self._seed = seed
        self.depth = draft.depth

    def start(self, prompt: Prefix) -> None:
        """Pass it on to both."""
        self._draft.start(prompt)
        self._oracle.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass of the draft; the oracle answers when its rows are read."""
        swapped = [context for context in wanted if coin(context, self._seed) < self._probability]
        return _MatchedStep(self._draft.begin(wanted, branches), wanted, self._oracle, swapped)

    def keep(self, text: Prefix) -> None:
        """Pass it on to both."""
        self._draft.keep(text)
        self._oracle.keep(text)


class _MatchedStep(Step):
    def __init__(
        self, step: Step, wanted: Sequence[Prefix], oracle: Network, swapped: Sequence[Prefix]
    ) -> None:
        self._step, self._wanted, self._oracle, self._swapped = step, wanted, oracle, swapped

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        self._step.layers(first, last, streamed)

    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        own = self._step.rows(at)
        wanted = self._wanted if at is None else [self._wanted[i] for i in at]
        if not self._swapped:
            return own
        said = self._oracle.begin(self._swapped)
        said.layers(0, self._oracle.depth)
        choices = {c: row.choice for c, row in zip(self._swapped, said.rows(), strict=True)}
        return [
            with_first(row, choices[context]) if context in choices else row
            for context, row in zip(wanted, own, strict=True)
        ]


def coin(context: Prefix, seed: int) -> float:
    """A number in [0, 1) that depends on a context's tokens and a seed alone."""
    tossed = blake2b(b"%d " % seed + context.digest, digest_size=8).digest()
    return int.from_bytes(tossed, "little") / 2**64


def with_first(row: Logits, token: int) -> Logits:
    """A row whose first token and `token` have changed places, the sorted log-probabilities as they were.

    A token beyond the ranks that a row keeps comes to the first place all the same; what was first is then
    beyond them.
    """
    tokens, logps = row.ranked()
    if tokens[0] == token:
        return row
    changed = [tokens[0] if each == token else each for each in tokens]
    return Logits(None, ([token, *changed[1:]], logps))


def swap_probability(native: float, wanted: float) -> float:
    """How often the target's choice must come first, for an agreement of `native` to become `wanted`.

    Where the draft is right already a swap changes nothing, so native + (1 - native) p = wanted.

    Args:
        native: share of contexts in which the draft's own first choice is the target's.
        wanted: the share that it shall be.

    Raises:
        InputError: the draft agrees more often than wanted, which no swap can undo.
    """
    if native > wanted:
        raise InputError(
            f"the draft agrees with its target in {native:.1%} of the calibration tokens, more than the "
            f"{wanted:.1%} that it is to be matched to; choose a weaker draft, or calibrate_draft_to=null"
        )
    return 0.0 if native == wanted else (wanted - native) / (1 - native)
