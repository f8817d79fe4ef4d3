"""An EAGLE-3 head as a network: it drafts from what its target computed, and from own guesses beyond that.

Knows nothing of devices or of what a pass costs. The row of a sequence comes from the pair of its last token
and the target's feature of all before it, at the position of that feature: the first pair, of the second
token, is at 0. Where the target has not been, the head's output for the pair before stands for the feature
(`HeadLineage`); once the target has been there, all such pairs are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from repro.core.late import late
from repro.models.drafting.eagle_head import EagleConfig, EagleHead
from repro.models.forward.features import Features
from repro.models.forward.logit_cache import LogitCache, MemoNetwork
from repro.models.forward.network import RANKED, Logits, Step
from repro.models.tokens.kv_slots import HeadLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import KVCache
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class DraftRow(Logits):
    """A row over a head's own vocabulary, told in the target's tokens."""

    def __init__(self, own: Tensor, targets: Tensor, vocab: int) -> None:
        """Logits `[draft vocab]`, the target's token for each, and how many tokens the target has."""
        super().__init__(None)
        self._own, self._targets, self._vocab = own, targets, vocab

    @property
    def logits(self) -> Tensor:
        """All logits `[target vocab]`, fp32; -inf where the head has no token."""
        whole = self._own.new_full((self._vocab,), -torch.inf)
        whole[self._targets] = self._own
        return whole

    def ranked(self) -> tuple[list[int], list[float]]:
        """See `Logits`; no more than the head has tokens."""
        if self._ranked is None:
            best = self._own.topk(min(RANKED, len(self._own)))
            logps = best.values - self._own.logsumexp(dim=-1)
            self._ranked = self._targets[best.indices].tolist(), logps.tolist()
        return self._ranked


class EagleNetwork:
    """A head, its cache and its guesses; see `Network`."""

    depth = 1

    def __init__(
        self,
        config: EagleConfig,
        load: Callable[[], EagleHead],
        features: Features,
        device: torch.device | str = "cpu",
        capacity: int = 512,
    ) -> None:
        """`load` gives the weights, on `device`, when they are first needed; `capacity` as of a
        `DecoderNetwork`."""
        self._load = load
        self.features = features
        self.lineage = HeadLineage(0)
        self.guesses: dict[Prefix, Tensor] = {}
        self.cache = KVCache(config.layer, capacity, device=device)

    @cached_property
    def head(self) -> EagleHead:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target reads the prompt before its head drafts."""
        self.lineage = HeadLineage(prompt.length)
        self.guesses.clear()
        self.features.start()

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`; a tree's levels follow one another within the pass."""
        return _EagleStep(self, wanted)

    @inference
    def keep(self, text: Prefix) -> None:
        """Forget what neither leads to `text` nor goes on from it, and what was guessed before it."""
        self.cache.keep(*self.lineage.keep(text))
        self.guesses = {
            prefix: guess
            for prefix, guess in self.guesses.items()
            if prefix.length > self.lineage.boundary and prefix in self.lineage
        }
        self.features.keep(text)


class _EagleStep(Step):
    def __init__(self, network: EagleNetwork, wanted: Sequence[Prefix]) -> None:
        self._network, self._wanted = network, list(wanted)
        self._waves = network.lineage.waves(wanted)
        coming = {prefix for wave in self._waves for prefix in wave}
        if not all(prefix in coming or prefix in network.guesses for prefix in wanted):
            raise RuntimeError("a sequence was asked for that has no pair, or whose pass is forgotten")
        network.cache.truncate(network.lineage.length)  # a pass that was left half way has no slots

    @inference
    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "a head stays in memory"
        for wave in self._waves if first < last else ():
            self._compute(wave)

    def _compute(self, wave: Sequence[Prefix]) -> None:
        network, head, lineage = self._network, self._network.head, self._network.lineage
        grounded = [prefix for prefix in wave if lineage.grounded(prefix)]
        known = dict(network.guesses)
        if grounded:
            before = [prefix.parent for prefix in grounded if prefix.parent is not None]
            features = network.features.of(before).to(head.device)
            known.update(zip(before, head.fuse(features).float().unbind(), strict=True))
        hidden = torch.stack([known[prefix.parent] for prefix in wave if prefix.parent is not None])
        mask = lineage.mask(wave)
        out = head.layer(
            torch.tensor([prefix.token for prefix in wave], device=head.device),
            hidden,
            torch.tensor([prefix.length - 2 for prefix in wave], device=head.device),
            mask if mask is None else mask.to(head.device),
            network.cache,
        )
        lineage.add(wave)
        network.guesses.update(zip(wave, out.unbind(), strict=True))

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        wanted = self._wanted if at is None else [self._wanted[i] for i in at]
        head = self._network.head
        logits = head.logits(torch.stack([self._network.guesses[prefix] for prefix in wanted]))
        if head.targets is None:
            return [Logits(row) for row in logits]
        return [DraftRow(row, head.targets, head.config.target_vocab) for row in logits]


class CachedHead(MemoNetwork):
    """A head behind a memo: what it says depends also on how far the target has been."""

    def __init__(self, network: EagleNetwork, memo: LogitCache) -> None:
        super().__init__(network, memo)
        self._head = network

    def start(self, prompt: Prefix) -> None:
        """See `Network`."""
        super().start(prompt)
        self._source = self._head.lineage.boundary

    def keep(self, text: Prefix) -> None:
        """See `Network`."""
        super().keep(text)
        self._source = self._head.lineage.boundary
