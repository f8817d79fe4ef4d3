"""Draft rows computed ahead along a text, level by level, for all places of the text at once.

A greedy method drafts after places of its target's own text, and which places depends on its costs. So a
draft's likely continuations of every place are computed together: a pass for each level of all trees, instead
of one for each tree and level; and the early exit's scores there. Owns which continuations are likely. Must
not know methods, devices or packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from repro.methods.lever.exit_predictor import ExitPredictor
from repro.methods.lever.exit_scores import exit_scores_of
from repro.methods.speculative.drafting.eagle import DraftRow
from repro.methods.speculative.drafting.eagle_head import EagleHead
from repro.methods.speculative.drafting.head_model import EagleModel
from repro.models.forward.cached_features import lowest
from repro.models.forward.logit_cache import LogitCache, row_key
from repro.models.forward.network import DecoderNetwork, Logits, rows_of
from repro.models.forward.side_by_side import GreedyText
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.inference import inference

TOGETHER = 16
"""Places of a text whose trees a decoder computes in one cache: more share a pass, fewer see fewer slots."""


class Likely(NamedTuple):
    """Which continuations of a place are computed ahead.

    Attributes:
        depth: levels of rows, the place's own included.
        reach: least product of the draft's probabilities on the way to a continuation.
        width: first choices of a row that continue.
        chain: levels to which the first choices alone are followed, whatever their probability.
    """

    depth: int = 8
    reach: float = 0.05
    width: int = 8
    chain: int = 8


@dataclass
class Ahead:
    """A place of a text and the draft's rows there and below it.

    Attributes:
        root: the place.
        rows: the draft's row after each sequence, `root` first.
        reach: the probability with which the draft goes on from `root` to each sequence.
    """

    root: Prefix
    rows: dict[Prefix, Logits] = field(default_factory=dict)
    reach: dict[Prefix, float] = field(default_factory=dict)


Place = TypeVar("Place")


class _Node(NamedTuple):
    place: int
    prefix: Prefix
    reach: float
    is_first: bool


Compute = Callable[[Sequence[tuple[int, Prefix]]], list[Logits]]
"""Computes the rows of one level: sequences with the index of their place; parents were asked for before."""


def _grown(roots: Sequence[Prefix], compute: Compute, likely: Likely) -> list[Ahead]:
    """The likely rows after each of some places of one text."""
    found = [Ahead(root) for root in roots]
    level = [_Node(i, root, 1.0, True) for i, root in enumerate(roots)]
    for depth in range(1, max(likely.depth, likely.chain) + 1):
        if not level:
            break
        rows = compute([(node.place, node.prefix) for node in level])
        below: list[_Node] = []
        for node, row in zip(level, rows, strict=True):
            found[node.place].rows[node.prefix] = row
            found[node.place].reach[node.prefix] = node.reach
            below += _children(node, row, depth, likely)
        level = below
    return found


def _children(node: _Node, row: Logits, depth: int, likely: Likely) -> Iterator[_Node]:
    """The children of a node whose rows are computed at level `depth`, counted from 0."""
    for rank, (token, logp) in enumerate(row.top(likely.width)):
        reach, is_first = node.reach * exp(logp), node.is_first and not rank
        if (depth < likely.depth and reach >= likely.reach) or (is_first and depth < likely.chain):
            yield _Node(node.place, node.prefix.then(token), reach, is_first)


@inference
def of_head(
    head: EagleHead, features: Tensor, text: Prefix, roots: Sequence[Prefix], likely: Likely
) -> list[Ahead]:
    """The likely rows of an EAGLE-3 head.

    Args:
        head: the head.
        features: the target's features of all tokens of `text` but the last, fp32 `[length - 1, features]`.
        text: the text.
        roots: its places, each at least two tokens long.
        likely: which rows are computed.
    """
    return _grown(roots, _HeadLevels(head, features, text, roots).compute, likely)


class _HeadLevels:
    """An EAGLE-3 head's cache: a slot for each token of the text, then the slots of all branches.

    A row sees the text up to its place, its ancestors below the place, and itself.
    """

    def __init__(self, head: EagleHead, features: Tensor, text: Prefix, roots: Sequence[Prefix]) -> None:
        self._head, self._roots = head, roots
        self._cache = KVCache(head.config.layer, 4 * text.length, device=head.device)
        tokens = torch.tensor(text.tokens(after=1), device=head.device)
        positions = torch.arange(len(tokens), device=head.device)
        self._along = head.layer(
            tokens, head.fuse(features.to(head.device)).float(), positions, None, self._cache
        )
        self._lines: dict[tuple[int, Prefix], list[int]] = {}
        self._guesses: dict[tuple[int, Prefix], Tensor] = {}

    def compute(self, level: Sequence[tuple[int, Prefix]]) -> list[Logits]:
        """See `Compute`."""
        if all(prefix is self._roots[place] for place, prefix in level):
            out = self._along[[prefix.length - 2 for _, prefix in level]]
            self._lines = {one: [] for one in level}
        else:
            out = self._continued(level)
        self._guesses = dict(zip(level, out.unbind(), strict=True))
        head = self._head
        logits = head.logits(out)
        if head.targets is None:
            return [Logits(None, Logits(row).top_ranks()) for row in logits]
        vocab = head.config.target_vocab
        return [Logits(None, DraftRow(row, head.targets, vocab).top_ranks()) for row in logits]

    def _continued(self, level: Sequence[tuple[int, Prefix]]) -> Tensor:
        head, before = self._head, self._cache.length
        above = [(place, prefix.parent) for place, prefix in level if prefix.parent is not None]
        seen = torch.zeros(len(level), before + len(level), dtype=torch.bool)
        lines = {}
        for i, ((place, prefix), parent) in enumerate(zip(level, above, strict=True)):
            line = [*self._lines[parent], before + i]
            seen[i, : self._roots[place].length - 1] = True
            seen[i, line] = True
            lines[place, prefix] = line
        self._lines = lines
        return head.layer(
            torch.tensor([prefix.token for _, prefix in level], device=head.device),
            torch.stack([self._guesses[parent] for parent in above]),
            torch.tensor([prefix.length - 2 for _, prefix in level], device=head.device),
            seen.to(head.device),
            self._cache,
        )


def of_decoder(decoder: Decoder, roots: Sequence[Prefix], likely: Likely) -> Iterator[Ahead]:
    """The likely rows of a draft that is a decoder; `roots` are places of one text, in its order."""
    network = DecoderNetwork(decoder)
    for group in _groups(roots):
        rows: dict[Prefix, Logits] = {}

        def compute(level: Sequence[tuple[int, Prefix]], rows: dict[Prefix, Logits] = rows) -> list[Logits]:
            asked = [prefix for _, prefix in level]
            new = [prefix for prefix in dict.fromkeys(asked) if prefix not in rows]
            if new:
                said = zip(new, rows_of(network, new), strict=True)
                rows.update((prefix, Logits(None, row.top_ranks())) for prefix, row in said)
            return [rows[prefix] for prefix in asked]

        yield from _grown(group, compute, likely)
        _keep_before(network, group[-1])


def exit_scores(
    predictor: ExitPredictor, decoder: Decoder, found: Sequence[Ahead], likely: Likely
) -> Iterator[tuple[Prefix, Mapping[int, float]]]:
    """An early exit's scores of the candidates of each likely sequence, by sequence and token.

    Args:
        predictor: the predictor.
        decoder: its target.
        found: the draft's rows after places of one text, in its order.
        likely: which sequences are scored, and how many candidates of each.
    """
    network = DecoderNetwork(lowest(decoder, predictor.layer))
    for group in _groups(found):
        asked: dict[Prefix, dict[int, None]] = {}
        for ahead in group:
            for prefix, row in ahead.rows.items():
                if ahead.reach[prefix] >= likely.reach:
                    tokens = asked.setdefault(prefix, {})
                    tokens.update(dict.fromkeys(token for token, _ in row.top(likely.width)))
        step = network.begin([*asked])
        step.layers(0, network.depth)
        candidates = [tuple(tokens) for tokens in asked.values()]
        scores = predictor.scores(step.hidden(), candidates)
        for prefix, chosen, values in zip(asked, candidates, scores, strict=True):
            yield prefix, dict(zip(chosen, values.tolist(), strict=True))
        _keep_before(network, group[-1].root)


def _groups(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    return (places[start : start + TOGETHER] for start in range(0, len(places), TOGETHER))


@inference
def _keep_before(network: DecoderNetwork, place: Prefix) -> None:
    """Keep the text before a place, and nothing after it: what follows is asked for again."""
    assert place.parent is not None
    network.cache.keep(*network.lineage.cut(place.parent))


def rows_ahead(draft: Model, text: GreedyText, places: int, memo: LogitCache, likely: Likely) -> list[Ahead]:
    """Compute and store the likely rows of a draft after the first `places` places of a text.

    The target's features that an EAGLE-3 head reads along the text are computed in one pass.
    """
    roots = [text.prompt.extend(text.tokens[: i + 1]) for i in range(places)]
    if isinstance(draft, EagleModel):
        found = of_head(draft.head, draft.features(list(roots[-1].back())[:0:-1]), roots[-1], roots, likely)
    else:
        found = list(of_decoder(draft.decoder(), roots, likely))
    sources = [one.root.length - 1 if isinstance(draft, EagleModel) else 0 for one in found]
    memo.put_first(
        (row_key(prefix.digest, source), *row.top_ranks())
        for one, source in zip(found, sources, strict=True)
        for prefix, row in one.rows.items()
    )
    return found


def exits_ahead(target: Model, found: Sequence[Ahead], memo: LogitCache, likely: Likely) -> None:
    """Compute and store the early exit's scores of candidates after likely sequences of one text."""
    scores: dict[Prefix, dict[int, float]] = {}
    for prefix, more in exit_scores(exit_scores_of(target).predictor(), target.decoder(), found, likely):
        scores.setdefault(prefix, {}).update(more)
    memo.add_scores((prefix.digest, more) for prefix, more in scores.items())
