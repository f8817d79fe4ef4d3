"""Medusa heads as a network: all heads predict from one hidden state of the target.

Owns the pass of the heads. Must not know about devices or costs. The logits after a sequence come from the
head that predicts its next token (`MedusaLineage`), independent of the draft tokens between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from repro.libraries import Tensor
from repro.methods.speculative.drafting.medusa_head import MedusaHeads
from repro.models.forward.features import Features
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import RANKED, Logits, Step
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights


class MedusaNetwork:
    """Medusa heads and the target's features they read; see `Network`."""

    depth = 1

    def __init__(
        self,
        count: int,
        load: Callable[[], MedusaHeads],
        features: Features,
        memo: LogitCache | None = None,
        ranks: int = RANKED,
    ) -> None:
        """`count` heads, which `load` returns on first use; with a memo their first `ranks` are looked up."""
        self._count = count
        self._load = load
        self.features = features
        self.memo, self.ranks = memo, ranks
        self.lineage = MedusaLineage(0, count)

    @cached_property
    def heads(self) -> MedusaHeads:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target prefills the prompt before its heads draft."""
        self.lineage = MedusaLineage(prompt.length, self._count)
        self.features.start()

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return _MedusaStep(self, wanted)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self.lineage.keep(text)
        self.features.keep(text)


Place = tuple[Prefix, int]


class _MedusaStep(Step):
    def __init__(self, network: MedusaNetwork, wanted: Sequence[Prefix]) -> None:
        self._network = network
        self._wanted: list[Place] = [network.lineage.place(prefix) for prefix in wanted]
        self._rows: dict[Place, Logits] = {}
        self._missing: list[Place] = []
        self._hidden: Tensor | None = None

    @inference
    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "heads stay in memory"
        if first == last:
            return
        self._rows = self._remembered()
        self._missing = [place for place in dict.fromkeys(self._wanted) if place not in self._rows]
        if self._missing:
            heads = self._network.heads
            features = self._network.features.of([root for root, _ in self._missing]).to(heads.device)
            self._hidden = heads.hidden(features, [head for _, head in self._missing])

    def _remembered(self) -> dict[Place, Logits]:
        """Logits found in the memo; the key is the feature's sequence and the head's number plus 1."""
        memo = self._network.memo
        if memo is None:
            return {}
        ranks = self._network.ranks
        found = {place: memo.get(place[0], place[1] + 1, ranks) for place in dict.fromkeys(self._wanted)}
        return {place: row for place, row in found.items() if row}

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        if self._hidden is not None:
            self._project(self._hidden)
            self._hidden = None
        wanted = self._wanted if at is None else [self._wanted[i] for i in at]
        return [self._rows[place] for place in wanted]

    def _project(self, hidden: Tensor) -> None:
        logits = self._network.heads.logits(hidden, [head for _, head in self._missing])
        new = dict(zip(self._missing, map(Logits, logits), strict=True))
        if memo := self._network.memo:
            new = {place: Logits(None, row.ranked()) for place, row in new.items()}
            for head in {head for _, head in new}:
                own = {root: row for (root, number), row in new.items() if number == head}
                memo.put(list(own), list(own.values()), head + 1)
        self._rows |= new
