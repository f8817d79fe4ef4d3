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
from repro.models.forward.logit_cache import row_key
from repro.models.forward.network import Logits, Step
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights


class MedusaNetwork:
    """Medusa heads and the target's features they read; see `Network`."""

    depth = 1

    def __init__(self, count: int, load: Callable[[], MedusaHeads], features: Features) -> None:
        """`count` heads, which `load` returns on first use."""
        self._count = count
        self._load = load
        self.features = features
        self.lineage = MedusaLineage(0, count)

    @cached_property
    def heads(self) -> MedusaHeads:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target prefills the prompt before its heads draft."""
        self.lineage = MedusaLineage(prompt.length, self._count)
        self.features.start()

    def key(self, prefix: Prefix) -> bytes:
        """What a row is stored under: the sequence whose feature is read, and the head that reads it."""
        root, head = self.lineage.root_and_head(prefix)
        return row_key(root.digest, head + 1)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return _MedusaStep(self, wanted)

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        self.lineage.keep(text)
        self.features.keep(text)


class _MedusaStep(Step):
    def __init__(self, network: MedusaNetwork, prefixes: Sequence[Prefix]) -> None:
        self._network = network
        pairs = [network.lineage.root_and_head(prefix) for prefix in prefixes]
        self._roots, self._heads = [root for root, _ in pairs], [head for _, head in pairs]
        self._hidden: Tensor | None = None

    @inference
    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "heads stay in memory"
        if first < last:
            heads = self._network.heads
            features = self._network.features.of(self._roots).to(heads.device)
            self._hidden = heads.hidden(features, self._heads)

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        assert self._hidden is not None, "heads say nothing before their layer has run"
        indices = list(range(len(self._heads)) if at is None else at)
        logits = self._network.heads.logits(self._hidden[indices], [self._heads[i] for i in indices])
        return [Logits(row) for row in logits]
