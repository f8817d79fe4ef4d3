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
from repro.methods.compression.pruning.level import checked, figures_of, layers_at
from repro.models.analysis.hooks import PARTS
from repro.models.analysis.layer_dropping import of_layers, resident
from repro.models.analysis.layer_importance import hidden_rows, rows_from, through
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import Linear

Texts = Sequence[Tensor]


class Merge(NamedTuple):
    """A layer that takes in so many above it, numbered as they are at that time."""

    at: int
    above: int


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
        texts: of the corpus, the first so many are looked at; LaCo has five short ones. Each of the hundred
            trials or so that a real model takes reads them again.
    """

    level: float = 0.5
    merged: int = 4
    interval: int = 1
    lowest: int = 0
    threshold: float = 0.45
    step: float = 0.1
    texts: int = 5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`; InputError also for settings with which no merge would be tried."""
        checked(self.level)
        if self.merged < 2 or min(self.interval, self.texts) < 1 or self.step <= 0.0:
            raise InputError(
                f"merged is {self.merged}, interval {self.interval}, step {self.step}, texts {self.texts}; "
                "a merge takes 2 layers or more, an interval and texts are at least 1, and a step is above 0"
            )
        wanted = layers_at(self.level, decoder.config.layers)
        if not 0 <= self.lowest < wanted:
            raise InputError(
                f"lowest is {self.lowest}, and {wanted} layers are to be left; choose 0 to {wanted - 1}"
            )
        trials, threshold = _Trials(decoder, corpus[: self.texts]), self.threshold
        self._descend(trials, wanted, threshold)
        while trials.left > wanted:
            threshold -= self.step
            self._descend(trials, wanted, threshold)
        return Compressed(trials.decoder, {**figures_of(trials.decoder, decoder), "threshold": threshold})

    def _descend(self, trials: _Trials, wanted: int, threshold: float) -> None:
        """Go once over the layers that are left, from the top down, and do the merges that hold."""
        at = max(trials.left - 1 - self.merged, self.lowest)
        while at >= self.lowest and (left := trials.left) > wanted:
            tried = Merge(at, min(self.merged - 1, left - 1 - at, left - wanted))
            if trials.similarity(tried) > threshold:
                trials.keep(tried)
                at -= self.interval
            else:
                at -= 1


class _Trials:
    """A decoder that takes in merge after merge, and how similar each next one would leave it to the whole.

    A merge changes no layer below it, so a trial reads on from the rows there. Until a merge is kept, the
    similarity of another is found once.
    """

    def __init__(self, whole: Decoder, corpus: Texts) -> None:
        if not corpus:
            raise InputError("merges are judged on a corpus of no sequence; set corpus.texts to at least 1")
        self.decoder = whole
        self._rows = [hidden_rows(whole, tokens) for tokens in corpus]
        self._wanted = [self._ended(rows[-1]) for rows in self._rows]
        self._known: dict[Merge, float] = {}

    @property
    def left(self) -> int:
        """How many layers are left."""
        return self.decoder.config.layers

    def similarity(self, merge: Merge) -> float:
        """The mean over texts of the cosine of all last rows of a text at once, to the whole decoder's."""
        if merge not in self._known:
            made = merged(self.decoder, merge)
            last = [through(made, range(merge.at, made.config.layers), rows[merge.at]) for rows in self._rows]
            pairs = zip(self._wanted, map(self._ended, last), strict=True)
            cosines = [F.cosine_similarity(x.flatten(), y.flatten(), dim=0) for x, y in pairs]
            self._known[merge] = float(torch.stack(cosines).mean())
        return self._known[merge]

    def keep(self, merge: Merge) -> None:
        """Do a merge."""
        at, made = merge.at, merged(self.decoder, merge)
        self._rows = [[*rows[:at], *rows_from(made, at, rows[at])] for rows in self._rows]
        self.decoder, self._known = made, {}

    def _ended(self, rows: Tensor) -> Tensor:
        """Rows behind the last layer, behind the final norm too."""
        norm = self.decoder.ends.final_norm
        return rows if norm is None else norm(rows)


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
