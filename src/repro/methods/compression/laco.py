"""LaCo: layers collapse into the one below them as long as the last hidden rows stay similar.

Owns the loop over merges and what a merge is. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import checked, figures_of, layers_at
from repro.models.decoder import Decoder
from repro.models.layer_importance import hidden_rows
from repro.models.linear import Linear
from repro.models.observe import PARTS
from repro.models.partial import of_layers, resident

Texts = Sequence[Tensor]


class Merge(NamedTuple):
    """A layer that takes in so many above it, numbered as they are at that time."""

    at: int
    above: int


Merges = tuple[Merge, ...]


@register("compression", "laco")
@dataclass(frozen=True)
class Laco:
    """A layer takes in the differences of those above it, which go, where the model hardly notices.

    From the top down, a layer and the `merged - 1` above it become one: its matrices plus the sum of their
    differences to it (LaCo's reserving-differences-while-seeking-common merge); its norms stay. The merge
    holds if the last hidden rows, behind the final norm, still have a mean cosine above `threshold` with
    those of the whole model. The next merge is tried `interval` layers below one that held, or one layer
    below one that did not.

    Deviation: LaCo's loop ends at the lowest layer, wherever it has come to. To reach a level this one starts
    over at the top with a threshold lower by `step`, and merges no more layers than the level asks for.

    Attributes:
        level: the share of layers kept, rounded down.
        merged: layers that become one in a merge.
        interval: layers between a merge that held and the next try.
        lowest: the lowest layer that may take others in.
        threshold: the cosine above which a merge holds at first.
        step: by how much the threshold sinks from one pass over the layers to the next.
    """

    level: float = 0.5
    merged: int = 4
    interval: int = 1
    lowest: int = 0
    threshold: float = 0.45
    step: float = 0.1

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`; InputError also for settings with which no merge would be tried."""
        checked(self.level)
        if self.merged < 2 or self.interval < 1 or self.step <= 0.0:
            raise InputError(
                f"merged is {self.merged}, interval {self.interval}, step {self.step}; "
                "a merge takes 2 layers or more, an interval is at least 1, and a step is above 0"
            )
        wanted = layers_at(self.level, decoder.config.layers)
        if not 0 <= self.lowest < wanted:
            raise InputError(
                f"lowest is {self.lowest}, and {wanted} layers are to be left; choose 0 to {wanted - 1}"
            )
        trials, threshold = _Trials(decoder, corpus), self.threshold
        merges = self._descend((), trials, wanted, threshold)
        while trials.left(merges) > wanted:
            threshold -= self.step
            merges = self._descend(merges, trials, wanted, threshold)
        made = trials.decoder(merges)
        return Compressed(made, {**figures_of(made, decoder), "threshold": threshold})

    def _descend(self, merges: Merges, trials: _Trials, wanted: int, threshold: float) -> Merges:
        """Go once over the layers that are left, from the top down, and add the merges that hold."""
        at = max(trials.left(merges) - 1 - self.merged, self.lowest)
        while at >= self.lowest and (left := trials.left(merges)) > wanted:
            tried = (*merges, Merge(at, min(self.merged - 1, left - 1 - at, left - wanted)))
            if trials.similarity(tried) > threshold:
                merges, at = tried, at - self.interval
            else:
                at -= 1
        return merges


class _Trials:
    """What merges make of one decoder; the similarity of each is found once."""

    def __init__(self, whole: Decoder, corpus: Texts) -> None:
        if not corpus:
            raise InputError("merges are judged on a corpus of no sequence; set corpus.texts to at least 1")
        self._whole, self._corpus = whole, corpus
        self._rows = _last_rows(whole, corpus)
        self._known: dict[Merges, float] = {}

    def left(self, merges: Merges) -> int:
        """How many layers are left after merges."""
        return self._whole.config.layers - sum(merge.above for merge in merges)

    def decoder(self, merges: Merges) -> Decoder:
        """The decoder after merges, one after the other."""
        made = self._whole
        for merge in merges:
            made = merged(made, merge)
        return made

    def similarity(self, merges: Merges) -> float:
        """The mean over texts of the cosine of all last rows of a text at once, to the whole decoder's."""
        if merges not in self._known:
            pairs = zip(self._rows, _last_rows(self.decoder(merges), self._corpus), strict=True)
            cosines = [F.cosine_similarity(x.flatten(), y.flatten(), dim=0) for x, y in pairs]
            self._known[merges] = float(torch.stack(cosines).mean())
        return self._known[merges]


def merged(decoder: Decoder, merge: Merge) -> Decoder:
    """A decoder of which some layers became one, `theta + sum of (theta of each above - theta)`."""
    layers = resident(decoder)
    base, above = layers[merge.at], layers[merge.at + 1 : merge.at + 1 + merge.above]
    sums = {part: _sum(getattr(base, part), [getattr(one, part) for one in above]) for part in PARTS}
    layers[merge.at] = replace(base, **sums)  # type: ignore[arg-type]
    gone = range(merge.at + 1, merge.at + 1 + merge.above)
    kept = [i for i in range(len(layers)) if i not in gone]
    return of_layers(Decoder(decoder.config, layers, decoder.ends), kept)


def _sum(base: Linear, above: Sequence[Linear]) -> Linear:
    """A linear plus what others differ from it by."""
    own = base.tensors()
    added = {name: sum(one.tensors()[name] - tensor for one in above) for name, tensor in own.items()}
    return base.with_tensors({name: tensor + added[name] for name, tensor in own.items()})


def _last_rows(decoder: Decoder, corpus: Texts) -> list[Tensor]:
    """Of each text the rows behind the last layer and the final norm, `[tokens, hidden]`."""
    norm = decoder.ends.final_norm
    rows = [hidden_rows(decoder, tokens)[-1] for tokens in corpus]
    return rows if norm is None else [norm(one) for one in rows]
