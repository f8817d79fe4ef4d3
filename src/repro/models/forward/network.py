"""Networks compute next-token logits: a real decoder, a cache of its logits, or a stub.

Owns the protocols `Network` and `Step`. A step is one forward pass: it begins with the sequences whose next
token is wanted, runs ranges of layers, and returns logits. Beside them stand the features that a draft head
reads from its target: hidden states at a few depths, one per sequence, captured from the target's own passes
(`Captured`) or, where a logit cache may have replaced such passes, computed separately
(`cached_features.CachedFeatures`). Must not know about devices, costs or heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from annotated_types import Interval

from repro.libraries import Tensor, torch
from repro.models.tokens.kv_slots import Lineage
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.inference import inference
from repro.models.transformer.layer import LayerWeights


class Features(Protocol):
    """Hidden states of a target."""

    def start(self) -> None:
        """Start a request: drop the state of the previous one."""

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Hidden states at each sequence's last token, depths concatenated: fp32 `[n, depths * hidden]`."""

    def keep(self, text: Prefix) -> None:
        """Drop sequences that are neither a prefix nor a continuation of `text`."""


class Captured:
    """Hidden states captured from a decoder's passes; see `Features`.

    Attributes:
        depths: numbers of layers after which hidden states are kept, ascending; depth i is layer i's input.
    """

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths = tuple(depths)
        self._states: dict[int, dict[Prefix, Tensor]] = {depth: {} for depth in depths}

    def __contains__(self, prefix: Prefix) -> bool:
        return all(prefix in states for states in self._states.values())

    def see(self, depth: int, prefixes: Sequence[Prefix], x: Tensor) -> None:
        """Record a pass's hidden states after `depth` layers, `[n, hidden]`."""
        if depth in self._states:
            self._states[depth].update(zip(prefixes, x.unbind(), strict=True))

    def start(self) -> None:
        """See `Features`."""
        for states in self._states.values():
            states.clear()

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Features`; RuntimeError for a sequence the target has not computed."""
        absent = next((prefix for prefix in prefixes if prefix not in self), None)
        if absent is not None:
            raise RuntimeError(f"the target has no features of {absent}: it has not computed it")
        rows = [torch.stack([self._states[depth][prefix] for prefix in prefixes]) for depth in self.depths]
        return torch.cat(rows, dim=-1)

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        ancestors = set(text.back())
        for states in self._states.values():
            dropped = [p for p in states if p not in ancestors and not p.starts_with(text)]
            for prefix in dropped:
                del states[prefix]


VERSION = 1
"""Version of what the model runtime (networks, caches, draft heads, sessions) computes and bills. Raised by
hand when an outcome changes."""

RANK_COUNT = 64
"""Number of top tokens that a logit cache stores per sequence, and the limit of `Logits.top`."""

Ranks = Annotated[int, Interval(ge=1, le=RANK_COUNT)]
"""How many of them a setting takes."""


class NotFiniteError(RuntimeError):
    """A model's logits or hidden states are NaN or infinite, so nothing follows from them."""


class Logits:
    """A model's scores of the next token after one sequence."""

    def __init__(self, logits: Tensor | None, ranks: tuple[list[int], list[float]] | None = None) -> None:
        """From logits `[vocab]`, or only from the top tokens and their log-probabilities."""
        self._logits = logits
        self._ranked = ranks

    @property
    def logits(self) -> Tensor:
        """All logits `[vocab]`, fp32; RuntimeError if only ranks were cached."""
        if self._logits is None:
            raise RuntimeError("a remembered row has ranks, no logits: sampling must not read from a memo")
        return self._logits

    @property
    def choice(self) -> int:
        """The most likely next token; NotFiniteError as for `top_ranks`."""
        if self._ranked:
            return self._ranked[0][0]
        best_token = int(self.logits.argmax())
        require_finite(float(self.logits[best_token]))
        return best_token

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` most likely tokens (at most 64) with their log-probabilities."""
        tokens, logps = self.top_ranks()
        return list(zip(tokens[:count], logps[:count], strict=True))

    def top_ranks(self) -> tuple[list[int], list[float]]:
        """The first 64 tokens and their log-probabilities, most likely first.

        Raises:
            NotFiniteError: a logit is NaN, or the largest one is infinite.
        """
        if self._ranked is None:
            logits = self.logits
            best_logits = logits.topk(min(RANK_COUNT, logits.shape[-1]))
            require_finite(float(best_logits.values[0]))
            logps = best_logits.values - logits.logsumexp(dim=-1)
            self._ranked = best_logits.indices.tolist(), logps.tolist()
        return self._ranked


def require_finite(maximum: float, quantity: str = "logit") -> None:
    """NotFiniteError unless the largest of some numbers is finite; it is NaN if one of them is."""
    if not math.isfinite(maximum):
        raise NotFiniteError(
            f"the largest {quantity} is {maximum}: the checkpoint is damaged, or computing it overflows"
        )


class LateLogits(Logits):
    """Logits that are computed when first read."""

    def __init__(self, compute: Callable[[], Logits]) -> None:
        super().__init__(None)
        self._compute = compute

    @property
    def choice(self) -> int:
        """See `Logits`."""
        return self.top_ranks()[0][0]

    def top_ranks(self) -> tuple[list[int], list[float]]:
        """See `Logits`."""
        if self._ranked is None:
            self._ranked = self._compute().top_ranks()
        return self._ranked


class Step(Protocol):
    """One forward pass in progress."""

    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        """Run layers `start` to `end - 1` on all positions, with `weights` or the resident ones."""

    def hidden(self) -> Tensor:
        """The wanted sequences' hidden states after the layers so far, fp32 `[wanted, hidden]`."""
        raise RuntimeError(f"{type(self).__name__} has no hidden rows to judge by: only a decoder has")

    def drop(self, indices: Sequence[int]) -> None:
        """Continue with only these wanted sequences, in this order; `indices` includes their ancestors."""
        raise RuntimeError(f"{type(self).__name__} cannot drop rows on the way: only a decoder can")

    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        """Logits of all wanted sequences, or of those at `indices`."""

    def late_rows(self) -> list[Logits]:
        """Logits of each wanted sequence, possibly computed only when read."""
        return self.rows()


class Network(Protocol):
    """Runs forward passes and keeps their KV cache.

    A network whose rows depend on more than their sequence also has `key(prefix)`, under which a cache stores
    them (`logit_cache.row_key`).

    Attributes:
        depth: number of layers it computes; 0 if none.
    """

    depth: int

    def start(self, prompt: Prefix) -> None:
        """Start a request: drop the state of the previous one. Only the prompt's tokens matter."""

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """Start a pass over the wanted sequences and their ancestors that are not cached yet.

        With `branches`, which together cover the wanted sequences, each branch is computed separately.
        """

    def keep(self, text: Prefix) -> None:
        """Drop cached sequences that are neither a prefix nor a continuation of `text`."""


def rows_of(network: Network, prefixes: Sequence[Prefix]) -> Sequence[Logits]:
    """What a network says after sequences, of one pass through all layers."""
    step = network.begin(prefixes)
    step.layers(0, network.depth)
    return step.rows()


class DecoderNetwork:
    """A decoder and its KV cache."""

    cache_kind = KVCache

    def __init__(self, decoder: Decoder, capacity: int = 512, captured: Captured | None = None) -> None:
        """`capacity` is the cache's initial size in tokens; it grows.

        Hidden states for a draft head are stored in `captured`.
        """
        self.decoder = decoder
        self.captured = captured
        self.depth = decoder.config.layers
        self.lineage = Lineage()
        self.cache = self.cache_kind(decoder.config, capacity, device=decoder.device)

    def start(self, prompt: Prefix) -> None:
        """Empty the cache; the first pass computes the prompt."""
        self.keep(Prefix.empty())

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """Start a pass over the uncached sequences; with several branches, shared ones repeat per branch."""
        return DecoderStep(self, prefixes, branches)

    @inference
    def keep(self, text: Prefix) -> None:
        """Drop and compact slots; in inference mode because the cache may have grown in it."""
        self.cache.keep(*self.lineage.keep(text))
        if self.captured:
            self.captured.keep(text)


class DecoderStep(Step):
    """A pass of a `DecoderNetwork`."""

    def __init__(
        self, network: DecoderNetwork, prefixes: Sequence[Prefix], branches: Sequence[Prefix]
    ) -> None:
        self._network = network
        lineage = network.lineage
        misses = lineage.missing(prefixes)
        if not set(prefixes) <= set(misses):
            raise RuntimeError("a sequence whose pass is over was asked for again")
        groups = group_branches(misses, prefixes, branches) if len(branches) > 1 else [misses]
        self._rows = [prefix for group in groups for prefix in group]
        self._find(prefixes)
        self._mask = lineage.mask(*groups)
        self._positions = torch.tensor([prefix.length - 1 for prefix in self._rows])
        self._before = lineage.length
        self._done = 0
        network.cache.truncate(self._before)  # drop slots of an unfinished pass
        with torch.inference_mode():
            self._x = self._embed(torch.tensor([prefix.token for prefix in self._rows]))

    def _embed(self, tokens: Tensor) -> Tensor:
        """The rows' embeddings; from here on the pass's tensors are where the decoder is."""
        decoder = self._network.decoder
        self._positions = self._positions.to(decoder.device)
        self._mask = self._mask if self._mask is None else self._mask.to(decoder.device)
        return decoder.embed(tokens.to(decoder.device), self._positions, ahead=True)

    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        """See `Step`."""
        network = self._network
        with torch.inference_mode():
            for i in range(start, end):  # not `Decoder.states`, which is a frame more above a layer
                layer_weights = weights[i - start] if weights else None
                x, cache = self._x, network.cache
                self._x = network.decoder.layer(i, x, self._positions, self._mask, cache, layer_weights)
                if network.captured:
                    network.captured.see(i + 1, self._rows, self._x)
        self._did(end)

    def _did(self, end: int) -> None:
        """Note that layers up to `end` have run."""
        self._done = end
        if end == self._network.depth:
            self._network.lineage.add(self._rows)

    def hidden(self) -> Tensor:
        """See `Step`."""
        return self._x[self._read]

    @inference
    def drop(self, indices: Sequence[int]) -> None:
        """See `Step`; uncached ancestors stay, and the computed layers' cache is compacted to match."""
        requested_prefixes = [self._rows[i] for i in self._read]
        remaining_prefixes = [requested_prefixes[i] for i in indices]
        dropped_prefixes = set(requested_prefixes).difference(remaining_prefixes)
        row_indices = [i for i, prefix in enumerate(self._rows) if prefix not in dropped_prefixes]
        cached_slots = self._before
        self._network.cache.keep(cached_slots, [cached_slots + i for i in row_indices], range(self._done))
        self._rows = [self._rows[i] for i in row_indices]
        self._find(remaining_prefixes)
        self._x, self._positions = self._x[row_indices], self._positions[row_indices]
        if self._mask is not None:
            self._mask = self._mask[row_indices][
                :, [*range(cached_slots), *(cached_slots + i for i in row_indices)]
            ]

    @inference
    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        """See `Step`."""
        row_indices = self._read if indices is None else [self._read[i] for i in indices]
        reads_all = row_indices == list(range(len(self._x)))
        return [Logits(row) for row in self._head(self._x if reads_all else self._x[row_indices])]

    def _head(self, x: Tensor) -> Tensor:
        return self._network.decoder.head(x)

    def _find(self, prefixes: Sequence[Prefix]) -> None:
        row = {prefix: i for i, prefix in reversed(list(enumerate(self._rows)))}
        self._read = [row[prefix] for prefix in prefixes]


def group_branches(
    misses: Sequence[Prefix], prefixes: Sequence[Prefix], branches: Sequence[Prefix]
) -> list[list[Prefix]]:
    """The missing common ancestors of all wanted sequences, then each branch's other missing sequences.

    Sequences shared by several branches repeat in each. A prompt that is missing because a memo answered for
    it appears once.
    """
    common_nodes = set.intersection(*(set(branch.back()) for branch in branches))
    least_length = min(prefix.length for prefix in prefixes)
    trunk = [node for node in misses if node in common_nodes and node.length < least_length]
    uncommon = set(misses).difference(trunk)
    return [trunk, *([node for node in branch.back() if node in uncommon][::-1] for branch in branches)]


class NoNetwork:
    """A stub network for cost-only runs; always predicts token 0."""

    depth = 0

    def start(self, prompt: Prefix) -> None:
        """No state."""

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass without computation."""
        return KnownStep([Logits(None, ([0], [0.0])) for _ in prefixes])

    def keep(self, text: Prefix) -> None:
        """No state."""


class KnownStep(Step):
    """A pass whose logits are known in advance."""

    def __init__(self, rows: list[Logits]) -> None:
        self._rows = rows

    def layers(self, start: int, end: int, weights: Sequence[LayerWeights] | None = None) -> None:
        """Nothing to compute."""

    def drop(self, indices: Sequence[int]) -> None:
        """Keep only these logits."""
        self._rows = [self._rows[i] for i in indices]

    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        """The known logits."""
        return self._rows if indices is None else [self._rows[i] for i in indices]


class RewrittenStep:
    """A pass of a network whose rows are rewritten when they are read; see `Step`."""

    def __init__(
        self,
        step: Step,
        prefixes: Sequence[Prefix],
        rewrite: Callable[[Sequence[Prefix], list[Logits]], list[Logits]],
    ) -> None:
        """`rewrite` gets sequences and the step's logits of them."""
        self._step, self._prefixes, self._rewrite = step, list(prefixes), rewrite
        self.layers, self.hidden = step.layers, step.hidden  # no frame more above a layer

    def drop(self, indices: Sequence[int]) -> None:
        """See `Step`."""
        self._prefixes = [self._prefixes[i] for i in indices]
        self._step.drop(indices)

    def rows(self, indices: Sequence[int] | None = None) -> list[Logits]:
        """See `Step`."""
        prefixes = self._prefixes if indices is None else [self._prefixes[i] for i in indices]
        return self._rewrite(prefixes, self._step.rows(indices))

    def late_rows(self) -> list[Logits]:
        """See `Step`; all are read."""
        return self.rows()


class LateNetwork:
    """A network that is created on the first pass: never, if a memo in front answers everything."""

    def __init__(self, depth: int, open_network: Callable[[], Network]) -> None:
        self.depth = depth
        self._make = open_network
        self._network: Network | None = None

    def start(self, prompt: Prefix) -> None:
        """See `Network`; no effect before the network is created."""
        if self._network is not None:
            self._network.start(prompt)

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        if self._network is None:
            self._network = self._make()
        return self._network.begin(prefixes, branches)

    def keep(self, text: Prefix) -> None:
        """See `Network`; no effect before the network is created."""
        if self._network is not None:
            self._network.keep(text)
