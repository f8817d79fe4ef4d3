"""Which rank Medusa heads gave their target's own tokens: recorded along greedy answers, and as accuracies.

Owns the record and its file. Must not know trees, nor how heads compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.checkpoints.safetensors_io import read_tensors, write_tensors
from repro.models.forward.network import RANKED, Logits

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

FILE = "ranks.safetensors"
"""The name of a record in the folder of the heads' checkpoint."""

TOP = 10
"""Ranks of a head that trees may hold, as in Medusa's own trees."""


@dataclass(frozen=True, eq=False)
class HeadRanks:
    """Ranks of the target's own tokens in its heads' rows, one answer after the other.

    A position is a token of an answer from which a verification may start: the root. All tokens but an
    answer's last are roots, so an answer has one position less than tokens.

    Attributes:
        ranks: int16 `[positions, heads]`: at each position the rank in head k's row of the token k + 1 places
            after the root, 0 for the first; `RANKED` where it is not among them or the answer has ended.
        begins: the first position of each answer, ascending, from 0 on.
    """

    ranks: Tensor
    begins: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.ranks.ndim != 2 or self.ranks.dtype != torch.int16 or not self.ranks.numel():
            found = f"{self.ranks.dtype} {list(self.ranks.shape)}"
            raise InputError(f"ranks of heads are {found}; they must be int16 [positions, heads]")
        ends = (*self.begins, self.positions)
        if not self.begins or self.begins[0] or any(a >= b for a, b in pairwise(ends)):
            raise InputError(
                f"the answers of {self.positions} ranked positions begin at {list(self.begins)}; "
                "they must begin at 0 and ascend"
            )

    @property
    def positions(self) -> int:
        """Roots of all answers together."""
        return len(self.ranks)

    @property
    def heads(self) -> int:
        """Heads that were asked."""
        return self.ranks.shape[1]

    @cached_property
    def ends(self) -> Tensor:
        """For each position the first one after its answer, int64 `[positions]`."""
        after = torch.tensor([*self.begins[1:], self.positions])
        lengths = after - torch.tensor(self.begins)
        return after.repeat_interleave(lengths)

    def first(self, heads: int) -> HeadRanks:
        """The record of the first heads alone."""
        return HeadRanks(self.ranks[:, :heads].contiguous(), self.begins)

    def accuracies(self, ranks: int = TOP) -> list[list[float]]:
        """`[head][rank]`: how often that rank was the target's token, where the answer has one so far on.

        Raises:
            InputError: no answer is long enough for the last head.
        """
        out = []
        for head in range(self.heads):
            inside = torch.arange(self.positions) + head < self.ends
            count = int(inside.sum())
            if not count:
                raise InputError(
                    f"no recorded answer has a token {head + 1} places after its first; record longer ones"
                )
            column = self.ranks[inside, head]
            out.append([int((column == rank).sum()) / count for rank in range(ranks)])
        return out

    def save(self, path: Path, about: Mapping[str, str]) -> None:
        """Write a safetensors file; `about` says what was recorded."""
        write_tensors(path, {"ranks": self.ranks, "begins": torch.tensor(self.begins)}, about)

    @classmethod
    def load(cls, path: Path) -> HeadRanks:
        """The record in a file; InputError when it is none."""
        found = read_tensors(path)
        if missing := {"ranks", "begins"} - found.keys():
            raise InputError(f"{path} holds no ranks of heads: it lacks {', '.join(sorted(missing))}")
        return cls(found["ranks"], tuple(found["begins"].tolist()))


@dataclass(frozen=True)
class Calibration:
    """What a search for verification trees knows of the heads.

    Attributes:
        accuracies: `[head][rank]`: how often that rank of that head is the target's own token.
        ranks: the record that they come from; None where only the accuracies are known.
    """

    accuracies: tuple[tuple[float, ...], ...]
    ranks: HeadRanks | None = None

    @classmethod
    def of(cls, ranks: HeadRanks) -> Calibration:
        """What a record says."""
        return cls(tuple(map(tuple, ranks.accuracies())), ranks)


def answer_ranks(tokens: Sequence[int], said: Sequence[Sequence[Logits]]) -> Tensor:
    """One answer's part of `HeadRanks.ranks`.

    Args:
        tokens: the target's own answer.
        said: at each of its tokens but the last the rows of all heads.
    """
    out = torch.full((len(said), len(said[0]) if said else 0), RANKED, dtype=torch.int16)
    for position, rows in enumerate(said):
        for head, (row, token) in enumerate(zip(rows, tokens[position + 1 :], strict=False)):
            ranked = row.ranked()[0]
            if token in ranked:
                out[position, head] = ranked.index(token)
    return out


def joined(answers: Sequence[Tensor]) -> HeadRanks:
    """One record of several answers' ranks; answers without a position are left out.

    Raises:
        InputError: none has a position.
    """
    kept = [ranks for ranks in answers if len(ranks)]
    if not kept:
        raise InputError("no answer has a second token, so heads have nothing to say; raise max_tokens")
    lengths = [len(ranks) for ranks in kept]
    return HeadRanks(torch.cat(kept), tuple(sum(lengths[:i]) for i in range(len(lengths))))
