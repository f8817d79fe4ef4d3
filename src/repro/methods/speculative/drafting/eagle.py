"""An EAGLE-3 head as a network: it drafts from its target's features, and beyond them from its own output.

Owns the head's KV cache and guesses. Must not know about devices or costs. The head's input for a sequence is
its last token paired with the target's feature at the token before, at that feature's position: the first
pair, of the second token, is at position 0. Where the target has not computed the feature, the head's output
(a guess) replaces it (`HeadLineage`). Such pairs are recomputed once the target's features exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from repro.libraries import Tensor, torch
from repro.methods.speculative.drafting.eagle_head import EagleConfig, EagleHead
from repro.models.forward.features import Features
from repro.models.forward.logit_cache import row_key
from repro.models.forward.network import RANKED, Logits, Step
from repro.models.tokens.kv_slots import HeadLineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import KVCache
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights


class DraftRow(Logits):
    """Logits over a head's reduced vocabulary, with tokens mapped to the target's ids."""

    def __init__(self, draft_logits: Tensor, targets: Tensor, vocab: int) -> None:
        """From logits `[draft vocab]`, the target's id of each token, and the target's vocabulary size."""
        super().__init__(None)
        self._draft_logits, self._targets, self._vocab = draft_logits, targets, vocab

    @property
    def logits(self) -> Tensor:
        """All logits `[target vocab]`, fp32; -inf for tokens outside the head's vocabulary."""
        logits = self._draft_logits.new_full((self._vocab,), -torch.inf)
        logits[self._targets] = self._draft_logits
        return logits

    def top_ranks(self) -> tuple[list[int], list[float]]:
        """See `Logits`; at most the head's vocabulary."""
        if self._ranked is None:
            best = self._draft_logits.topk(min(RANKED, len(self._draft_logits)))
            logps = best.values - self._draft_logits.logsumexp(dim=-1)
            self._ranked = self._targets[best.indices].tolist(), logps.tolist()
        return self._ranked


class EagleNetwork:
    """A head with its KV cache and its guesses at features; see `Network`."""

    depth = 1

    def __init__(
        self,
        config: EagleConfig,
        load: Callable[[], EagleHead],
        features: Features,
        device: torch.device | str = "cpu",
        capacity: int = 512,
    ) -> None:
        """`load` returns the weights on `device` and is called on first use; `capacity` as in
        `DecoderNetwork`."""
        self._load = load
        self.features = features
        self.lineage = HeadLineage(0)
        self.guesses: dict[Prefix, Tensor] = {}
        self._cache = partial(KVCache, config.layer, capacity, device=device)

    @cached_property
    def cache(self) -> KVCache:
        """The key-value cache, made for the first pass."""
        return self._cache()

    @cached_property
    def head(self) -> EagleHead:
        """The weights."""
        return self._load()

    def start(self, prompt: Prefix) -> None:
        """See `Network`; the target prefills the prompt before its head drafts."""
        self.lineage = HeadLineage(prompt.length)
        self.guesses.clear()
        self.features.start()

    def key(self, prefix: Prefix) -> bytes:
        """What a row is stored under: it depends on how many tokens have features of the target."""
        return row_key(prefix.digest, self.lineage.boundary)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`; the levels of a tree are computed one after the other within the pass."""
        return _EagleStep(self, wanted)

    def keep(self, text: Prefix) -> None:
        """Keep only the prefixes of `text` whose slots were computed from the target's features."""
        slots = self.lineage.keep(text)
        if "cache" in vars(self):  # a pass was computed
            inference(self.cache.keep)(*slots)
        self.guesses = {
            prefix: guess
            for prefix, guess in self.guesses.items()
            if prefix.length > self.lineage.boundary and prefix in self.lineage
        }
        self.features.keep(text)


class _EagleStep(Step):
    def __init__(self, network: EagleNetwork, prefixes: Sequence[Prefix]) -> None:
        self._network, self._prefixes = network, list(prefixes)
        self._waves = network.lineage.waves(prefixes)
        computed = {prefix for wave in self._waves for prefix in wave}
        if not all(prefix in computed or prefix in network.guesses for prefix in prefixes):
            raise RuntimeError("a sequence was asked for that has no pair, or whose pass is forgotten")
        network.cache.truncate(network.lineage.length)  # drop slots of an unfinished pass

    @inference
    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        assert streamed is None, "a head stays in memory"
        for wave in self._waves if first < last else ():
            self._compute(wave)

    def _compute(self, wave: Sequence[Prefix]) -> None:
        network, head, lineage = self._network, self._network.head, self._network.lineage
        grounded = [prefix for prefix in wave if lineage.is_grounded(prefix)]
        inputs = dict(network.guesses)
        if grounded:
            parents = [prefix.parent for prefix in grounded if prefix.parent is not None]
            features = network.features.of(parents).to(head.device)
            inputs.update(zip(parents, head.fuse(features).float().unbind(), strict=True))
        hidden = torch.stack([inputs[prefix.parent] for prefix in wave if prefix.parent is not None])
        mask = lineage.mask(wave)
        guesses = head.layer(
            torch.tensor([prefix.token for prefix in wave], device=head.device),
            hidden,
            torch.tensor([prefix.length - 2 for prefix in wave], device=head.device),
            mask if mask is None else mask.to(head.device),
            network.cache,
        )
        lineage.add(wave)
        network.guesses.update(zip(wave, guesses.unbind(), strict=True))

    @inference
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        prefixes = self._prefixes if at is None else [self._prefixes[i] for i in at]
        head = self._network.head
        logits = head.logits(torch.stack([self._network.guesses[prefix] for prefix in prefixes]))
        if head.targets is None:
            return [Logits(row) for row in logits]
        return [DraftRow(row, head.targets, head.config.target_vocab) for row in logits]
