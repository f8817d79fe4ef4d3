"""Which sequences a key-value cache holds, in which slots. Knows nothing of keys and values themselves.

A cache is a trunk, a sequence whose n-th token lies in slot n, and behind it branches in any order. What is
asked for and not held is missing, ancestors included; what a mask lets a row see are its ancestors. Tokens
that an encoder read lie before the trunk, in no slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class Lineage:
    """The bookkeeping of one cache.

    Attributes:
        trunk: the longest sequence that lies in slots 0, 1, 2, ...
        length: slots in use.
    """

    def __init__(self, outside: int = 0) -> None:
        """Of every sequence the first `outside` tokens are held elsewhere and take no slots."""
        self.trunk = Prefix.empty()
        self.length = 0
        self._branches: dict[Prefix, int] = {}
        self._fresh = True
        self._outside = outside

    def __contains__(self, prefix: Prefix) -> bool:
        return prefix.length <= self._outside or prefix in self._branches or self._on_trunk(prefix)

    def _on_trunk(self, prefix: Prefix) -> bool:
        return not self._fresh and self.trunk.starts_with(prefix)

    def missing(self, wanted: Sequence[Prefix]) -> list[Prefix]:
        """The wanted sequences and all their ancestors that are not held, parents first."""
        found: dict[Prefix, None] = {}
        for prefix in wanted:
            for node in prefix.back():
                if node in found or node in self:
                    break
                found[node] = None
        return sorted(found, key=lambda node: node.length)

    def twin(self, prefix: Prefix) -> Prefix:
        """The sequence whose row this one's is: itself."""
        return prefix

    def waves(self, wanted: Sequence[Prefix]) -> list[list[Prefix]]:
        """What is missing of the wanted sequences, by the passes that it takes one after the other: one."""
        return [self.missing(wanted)]

    def fused(self, rows: Sequence[Prefix]) -> int:
        """How many rows read features of another model: none."""
        return 0

    def mask(self, *groups: Sequence[Prefix]) -> Tensor | None:
        """What each row may see: bool `[rows, length + rows]`, or `None` if that is all before it.

        Rows of several groups, which may repeat each other's, see their own group and what leads to them in
        the first.
        """
        if len(groups) == 1 and self._continues(groups[0]):
            return None
        count = sum(map(len, groups))
        first = {row: self.length + i for i, row in enumerate(groups[0])}
        seen = torch.zeros(count, self.length + count, dtype=torch.bool)
        begin = 0
        for rows in groups:
            column = first | {row: self.length + begin + i for i, row in enumerate(rows)}
            for i, row in enumerate(rows):
                self._see_ancestors(seen[begin + i], row, column)
            begin += len(rows)
        return seen

    def _see_ancestors(self, seen: Tensor, row: Prefix, column: dict[Prefix, int]) -> None:
        slots = []
        for node in row.back():
            slot = column.get(node, self._branches.get(node, -1))
            if slot < 0:
                seen[: self._slots(node.length)] = True
                break
            slots.append(slot)
        seen[slots] = True

    def _continues(self, rows: Sequence[Prefix]) -> bool:
        """Whether the rows are a chain that goes on from the end of a trunk without branches."""
        if self._branches:
            return False
        before = self.trunk if not self._fresh else rows[0].parent
        for row in rows:
            if row.parent is not before:
                return False
            before = row
        return True

    def add(self, rows: Sequence[Prefix]) -> None:
        """Take note of rows that were appended behind all slots in use; of repeated ones the first counts."""
        if self._continues(rows):
            self.trunk = rows[-1]
        else:
            slots = {row: self.length + i for i, row in reversed(list(enumerate(rows)))}
            self._branches.update(sorted(slots.items(), key=lambda item: item[1]))
        self._fresh = False
        self.length += len(rows)

    def keep(self, text: Prefix) -> tuple[int, list[int]]:
        """Forget all that is neither an ancestor of `text` nor goes on from it.

        Returns:
            How many of the first slots stay, and the other slots that stay, in their new order.
        """
        if self._on_trunk(text):
            ahead = [node for node in self._branches if node.starts_with(text)]
            return self._rearrange(self.trunk, self._slots(self.trunk.length), [], ahead)
        ahead = [node for node in self._branches if node.length > text.length and node.starts_with(text)]
        return self._rearrange(*self._line(text), ahead)

    def cut(self, text: Prefix) -> tuple[int, list[int]]:
        """Forget all that does not lead to `text`, what goes on from it too; returns as `keep`."""
        if self._on_trunk(text):
            return self._rearrange(text, self._slots(text.length), [], [])
        return self._rearrange(*self._line(text), [])

    def _line(self, text: Prefix) -> tuple[Prefix, int, list[Prefix]]:
        """How much of `text` is held, how many slots of that the trunk has, and what branches have of it."""
        line: list[Prefix] = []
        trunk = Prefix.empty()
        for node in text.back():
            if node in self._branches:
                line.append(node)
            elif node in self:
                trunk = node  # and so is all before it
                break
        return (line or [trunk])[0], self._slots(trunk.length), line[::-1]

    def _slots(self, length: int) -> int:
        """Slots that the first `length` tokens of a sequence take."""
        return max(0, length - self._outside)

    def _rearrange(
        self, trunk: Prefix, base: int, line: list[Prefix], ahead: list[Prefix]
    ) -> tuple[int, list[int]]:
        slots = [self._branches[node] for node in line + ahead]
        self.trunk = trunk
        self._branches = {node: base + len(line) + i for i, node in enumerate(ahead)}
        self._fresh = trunk.length == 0
        self.length = base + len(slots)
        return base, slots


class HeadLineage(Lineage):
    """The bookkeeping of a draft head, which goes on from what its target computed (EAGLE-3).

    The slot of a sequence holds its last token paired with the target's features of all before it, or with
    the head's own guess at them where the target has not been: a guess needs the pass before. The first token
    has no pair and no slot.

    Attributes:
        boundary: tokens of the text of which the target has features.
    """

    def __init__(self, boundary: int) -> None:
        """A prompt of `boundary` tokens, which the target reads before its head does."""
        super().__init__(outside=1)
        self.boundary = boundary

    def grounded(self, prefix: Prefix) -> bool:
        """Whether the target has features of all before a sequence's last token."""
        return prefix.length <= self.boundary + 1

    def waves(self, wanted: Sequence[Prefix]) -> list[list[Prefix]]:
        """What is missing, each as soon as it can be: a guess after that of its parent, the rest at once."""
        turn: dict[Prefix, int] = {}
        waves: dict[int, list[Prefix]] = {}
        for prefix in self.missing(wanted):
            before = None if self.grounded(prefix) or prefix.parent is None else turn.get(prefix.parent)
            turn[prefix] = 0 if before is None else before + 1
            waves.setdefault(turn[prefix], []).append(prefix)
        return list(waves.values()) or [[]]

    def fused(self, rows: Sequence[Prefix]) -> int:
        """How many rows read features of the target."""
        return sum(map(self.grounded, rows))

    def keep(self, text: Prefix) -> tuple[int, list[int]]:
        """Forget all guesses, also on the way to `text`: of all but its last token there are features now."""
        solid = text.up_to(min(text.length, self.boundary + 1))
        self.boundary = text.length - 1
        return self.cut(solid)


class MedusaLineage:
    """The bookkeeping of Medusa heads: which head says what follows a sequence, from which feature.

    Head k reads the target's feature of the text without its last token, and says what comes k tokens after
    the text, whatever stands between. So sequences of one length beyond the text are twins, and share a row.
    Nothing is cached: no row stands on another one, and a new text makes all rows anew.

    Attributes:
        boundary: tokens of the text of which the target has features.
        length: slots in use.
    """

    length = 0

    def __init__(self, boundary: int, heads: int) -> None:
        """A prompt of `boundary` tokens, which the target reads before its heads do."""
        self.boundary = boundary
        self._heads = heads
        self._twins: dict[tuple[Prefix, int], Prefix] = {}

    def place(self, prefix: Prefix) -> tuple[Prefix, int]:
        """The sequence at whose end the target's feature is read, and which head reads it.

        Raises:
            InputError: there is no head for a sequence that goes on so far.
        """
        root = prefix.up_to(max(0, min(prefix.length - 1, self.boundary)))
        head = prefix.length - root.length - 1
        if head >= self._heads:
            raise InputError(
                f"{self._heads} Medusa heads foresee {self._heads} tokens, and token {head + 1} was asked "
                f"for; choose a method that drafts at most {self._heads} (method.length={self._heads})"
            )
        return root, head

    def twin(self, prefix: Prefix) -> Prefix:
        """The sequence whose row this one's is: the first that was asked for of those with its place."""
        return self._twins.setdefault(self.place(prefix), prefix)

    def missing(self, wanted: Sequence[Prefix]) -> list[Prefix]:
        """What has to be computed for the wanted sequences, of which none is another's twin: no more."""
        return list(wanted)

    def waves(self, wanted: Sequence[Prefix]) -> list[list[Prefix]]:
        """All of it in one pass."""
        return [self.missing(wanted)]

    def fused(self, rows: Sequence[Prefix]) -> int:
        """How many rows' features have to be fused: none, a head reads one."""
        return 0

    def add(self, rows: Sequence[Prefix]) -> None:
        """Nothing is cached."""

    def keep(self, text: Prefix) -> None:
        """Forget all rows: of all but the last token of `text` there are features now."""
        self.boundary = text.length - 1
        self._twins.clear()
