"""Ranks that Medusa heads give to the target's tokens, recorded along greedy answers, and the accuracies.

Owns the record and its file. Must not know about trees or how heads compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.safetensors_io import read_tensors, write_tensors

RANKS_FILE = "ranks.safetensors"
"""File name of a record in the heads' checkpoint folder."""

TOP_RANKS = 10
"""Top tokens per head that trees may use, as in Medusa's own trees."""


@dataclass(frozen=True, eq=False)
class HeadRanks:
    """Ranks of the target's tokens in its heads' logits, for all positions of all answers.

    A position is an answer token from which a verification may start (the root of a token tree). All tokens
    but an answer's last are positions.

    Attributes:
        ranks: int16 `[positions, heads]`: rank (from 0) in head k's logits of the token k + 1 places after
            the position; `RANK_COUNT` if the token is not in the top `RANK_COUNT` or the answer has ended.
        begins: first position of each answer, ascending from 0.
    """

    ranks: Tensor
    begins: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.ranks.ndim != 2 or self.ranks.dtype != torch.int16 or not self.ranks.numel():
            type_and_shape = f"{self.ranks.dtype} {list(self.ranks.shape)}"
            raise InputError(f"ranks of heads are {type_and_shape}; they must be int16 [positions, heads]")
        ends = (*self.begins, self.positions)
        if not self.begins or self.begins[0] or any(begin >= end for begin, end in pairwise(ends)):
            raise InputError(
                f"the answers of {self.positions} ranked positions begin at {list(self.begins)}; "
                "they must begin at 0 and ascend"
            )

    @property
    def positions(self) -> int:
        """Number of positions in all answers."""
        return len(self.ranks)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.ranks.shape[1]

    @cached_property
    def ends(self) -> Tensor:
        """For each position, the end (exclusive) of its answer, int64 `[positions]`."""
        answer_ends = torch.tensor([*self.begins[1:], self.positions])
        lengths = answer_ends - torch.tensor(self.begins)
        return answer_ends.repeat_interleave(lengths)

    def first(self, head_count: int) -> HeadRanks:
        """The record of the first `head_count` heads only."""
        return HeadRanks(self.ranks[:, :head_count].contiguous(), self.begins)

    def accuracies(self, ranks: int = TOP_RANKS) -> list[list[float]]:
        """`[head][rank]`: share of positions where the head's token at that rank is the target's.

        Positions whose answer ends before the head's token are left out.

        Raises:
            InputError: no answer is long enough for the last head.
        """
        accuracies = []
        for head in range(self.heads):
            is_inside = torch.arange(self.positions) + head < self.ends
            count = int(is_inside.sum())
            if not count:
                raise InputError(
                    f"no recorded answer has a token {head + 1} places after its first; record longer ones"
                )
            column = self.ranks[is_inside, head]
            accuracies.append([int((column == rank).sum()) / count for rank in range(ranks)])
        return accuracies

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write a safetensors file with `metadata`."""
        write_tensors(path, {"ranks": self.ranks, "begins": torch.tensor(self.begins)}, metadata)

    @classmethod
    def load(cls, path: Path) -> HeadRanks:
        """Load the record in a file; InputError if it holds none."""
        tensors = read_tensors(path)
        if missing_names := {"ranks", "begins"} - tensors.keys():
            raise InputError(f"{path} holds no ranks of heads: it lacks {', '.join(sorted(missing_names))}")
        return cls(tensors["ranks"], tuple(tensors["begins"].tolist()))


@dataclass(frozen=True)
class Calibration:
    """Accuracies of the heads, for the search for verification trees.

    Attributes:
        accuracies: `[head][rank]`: how often the head's token at that rank is the target's.
        ranks: the record they come from; None if only the accuracies are known.
    """

    accuracies: tuple[tuple[float, ...], ...]
    ranks: HeadRanks | None = None

    @classmethod
    def of(cls, ranks: HeadRanks) -> Calibration:
        """From a record."""
        return cls(tuple(map(tuple, ranks.accuracies())), ranks)
