"""Networks that compare every row they compute with the target's own text.

An emulated cell looks rows up, so its verifications run no tree attention and compact no cache.
`run.exercise` computes a method's first tokens for real behind these networks. Must not know metrics, records
or sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repro.models.forward.network import Logits, Network, Step
from repro.models.forward.side_by_side import GreedyText
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.layer import LayerWeights

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 12
"""Tokens that are computed: several verifications, each after a compaction of the cache."""

COMPARED = 4
"""First ranks of a row whose log-probabilities are compared."""


class UnfaithfulRowError(RuntimeError):
    """A pass of a method computed other logits than the target's own text was chosen from."""


class ComparedNetwork:
    """A target's network whose rows along the own text must be those of that text."""

    def __init__(self, network: Network, own: GreedyText, bound: float) -> None:
        """`bound` is the largest difference of log-probabilities that rounding explains."""
        self._network = network
        self._own = dict(zip(own.contexts(), own.rows, strict=True))
        self._bound = bound
        self.depth = network.depth
        self.compared = 0

    def start(self, prompt: Prefix) -> None:
        """See `Network`."""
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return _ComparedStep(self, self._network.begin(wanted, branches), wanted)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self._network.keep(text)

    def compare(self, prefix: Prefix, row: Logits) -> None:
        """Compare one row, if the own text has it.

        Raises:
            UnfaithfulRowError: they differ by more than rounding explains.
        """
        own = self._own.get(prefix)
        if own is None:
            return
        self.compared += 1
        expected, found = own.top(COMPARED), dict(zip(*row.ranked(), strict=True))
        apart = max(abs(logp - found.get(token, float("-inf"))) for token, logp in expected)
        if apart > self._bound:
            raise UnfaithfulRowError(
                f"a pass of the method computed logits after {prefix.length} tokens that differ by "
                f"{apart:.3g} from those of the target's own text, and rounding explains {self._bound:g}: "
                "the pass's attention mask, the cache that it read, or the stored text is wrong"
            )


class _ComparedStep(Step):
    def __init__(self, network: ComparedNetwork, step: Step, wanted: Sequence[Prefix]) -> None:
        self._network, self._step, self._wanted = network, step, list(wanted)

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        self._step.layers(first, last, streamed)

    def hidden(self) -> Tensor:
        return self._step.hidden()

    def drop(self, kept: Sequence[int]) -> None:
        self._wanted = [self._wanted[i] for i in kept]
        self._step.drop(kept)

    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        rows = self._step.rows(at)
        wanted = self._wanted if at is None else [self._wanted[i] for i in at]
        for prefix, row in zip(wanted, rows, strict=True):
            self._network.compare(prefix, row)
        return rows
