"""LaCo: merges layers into the one below them while the last hidden states stay similar.

Owns the merge and the loop over merges. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from repro.core.bounds import Layers, Part, Tokens
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import figures_of, layers_at
from repro.models.analysis.hooks import PARTS
from repro.models.analysis.layers import of_layers, rows_by_layer, through
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import Linear

Texts = Sequence[Tensor]


class Merge(NamedTuple):
    """Merges `layers_above` into `layer`, in the numbering before the merge."""

    layer: int
    layers_above: int


@register("compression", "laco")
@dataclass(frozen=True)
class Laco:
    """Adds the parameter differences of the layers above to a layer and removes those layers.

    From the top down, a layer and the `merged - 1` above it become one: its matrices plus the sum of their
    differences to it (LaCo's reserving-differences-while-seeking-common merge); its norms stay. A merge is
    kept if the last hidden states, after the final norm, have a mean cosine above `threshold` with those of
    the whole model. The next merge is tried `interval` layers below a kept one, or one layer below a
    rejected one.

    Deviation: LaCo's loop ends at the lowest layer. To reach a level, this one starts again at the top with
    the threshold lowered by `step`, and merges no more layers than the level requires.

    Attributes:
        level: share of layers kept, rounded down.
        merged: layers that become one in a merge.
        interval: layers between a kept merge and the next trial.
        lowest: the lowest layer that may take in others.
        threshold: initial cosine above which a merge is kept; above 1, the first pass keeps none.
        step: decrease of the threshold per pass over the layers.
        texts: number of corpus texts used, from the first; LaCo uses five short ones. Each trial (about a
            hundred for a real model) reads them again.
    """

    level: Part = 0.5
    merged: Annotated[int, Interval(ge=2, le=10_000)] = 4
    interval: Annotated[int, Interval(ge=1, le=10_000)] = 1
    lowest: Layers = 0
    threshold: Annotated[float, Interval(ge=-1, le=2)] = 0.45
    step: Annotated[float, Interval(ge=0.001, le=2)] = 0.1
    texts: Tokens = 5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        count = layers_at(self.level, decoder.config.layers)
        if not 0 <= self.lowest < count:
            raise InputError(
                f"lowest is {self.lowest}, and {count} layers are to be left; choose 0 to {count - 1}"
            )
        trials, threshold = _Trials(decoder, corpus[: self.texts]), self.threshold
        self._descend(trials, count, threshold)
        while trials.layer_count > count:
            threshold -= self.step
            self._descend(trials, count, threshold)
        return Compressed(trials.decoder, {**figures_of(trials.decoder, decoder), "threshold": threshold})

    def _descend(self, trials: _Trials, least_count: int, threshold: float) -> None:
        """Go once over the remaining layers, from the top down, and keep merges above the threshold."""
        layer = max(trials.layer_count - 1 - self.merged, self.lowest)
        while layer >= self.lowest and (count := trials.layer_count) > least_count:
            merge = Merge(layer, min(self.merged - 1, count - 1 - layer, count - least_count))
            if trials.similarity(merge) > threshold:
                trials.keep(merge)
                layer -= self.interval
            else:
                layer -= 1


class _Trials:
    """The decoder after the kept merges, and the similarity of trial merges to the whole model.

    A merge changes no layer below it, so a trial starts from the stored hidden states there. Similarities
    are cached until a merge is kept.
    """

    def __init__(self, decoder: Decoder, corpus: Texts) -> None:
        if not corpus:
            raise InputError("merges are judged on a corpus of no sequence; set corpus.texts to at least 1")
        self.decoder = decoder
        self._rows = [rows_by_layer(decoder, tokens) for tokens in corpus]
        self._last_rows = [self._normalize(rows[-1]) for rows in self._rows]
        self._similarities: dict[Merge, float] = {}

    @property
    def layer_count(self) -> int:
        """Number of remaining layers."""
        return self.decoder.config.layers

    def similarity(self, merge: Merge) -> float:
        """Cosine of a text's flattened last hidden states with the whole decoder's, mean over texts."""
        if merge not in self._similarities:
            merged_decoder = merge_layers(self.decoder, merge)
            layers_above = range(merge.layer, merged_decoder.config.layers)
            last_rows = [through(merged_decoder, layers_above, rows[merge.layer])[-1] for rows in self._rows]
            pairs = zip(self._last_rows, map(self._normalize, last_rows), strict=True)
            cosines = [F.cosine_similarity(x.flatten(), reference.flatten(), dim=0) for x, reference in pairs]
            self._similarities[merge] = float(torch.stack(cosines).mean())
        return self._similarities[merge]

    def keep(self, merge: Merge) -> None:
        """Apply a merge."""
        base, decoder = merge.layer, merge_layers(self.decoder, merge)
        layers_above = range(base, decoder.config.layers)
        self._rows = [[*rows[:base], *through(decoder, layers_above, rows[base])] for rows in self._rows]
        self.decoder, self._similarities = decoder, {}

    def _normalize(self, rows: Tensor) -> Tensor:
        """Apply the final norm, if any, to the last layer's hidden states."""
        norm = self.decoder.ends.final_norm
        return rows if norm is None else norm(rows)


def merge_layers(decoder: Decoder, merge: Merge) -> Decoder:
    """Merge layers of a decoder into one: `theta + sum of (theta of each layers_above - theta)`."""
    layers = decoder.resident_layers()
    base_layer, layers_above = (
        layers[merge.layer],
        layers[merge.layer + 1 : merge.layer + 1 + merge.layers_above],
    )
    sums = {
        part: _sum(getattr(base_layer, part), [getattr(layer, part) for layer in layers_above])
        for part in PARTS
    }
    layers[merge.layer] = replace(base_layer, **sums)  # type: ignore[arg-type]
    absorbed_layers = range(merge.layer + 1, merge.layer + 1 + merge.layers_above)
    remaining_layers = [i for i in range(len(layers)) if i not in absorbed_layers]
    return of_layers(decoder.with_layers(layers), remaining_layers)


def _sum(base_linear: Linear, linears: Sequence[Linear]) -> Linear:
    """A linear plus the sum of the others' differences to it."""
    tensors = base_linear.tensors()
    differences = {
        name: sum(linear.tensors()[name] - tensor for linear in linears) for name, tensor in tensors.items()
    }
    return base_linear.with_tensors({name: tensor + differences[name] for name, tensor in tensors.items()})
