"""Which sequences a KV cache holds, in which slots.

Owns the slot bookkeeping. Must not know about keys and values. A cache consists of a trunk (a sequence whose
n-th token is in slot n) followed by branches in any order. A wanted sequence and its ancestors are missing if
not cached. The attention mask lets a sequence see its ancestors. Tokens read by an encoder take no slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.tokens.prefix import Prefix


class Lineage:
    """Slot bookkeeping of one decoder cache.

    Attributes:
        trunk: the longest sequence in slots 0, 1, 2, ...
        length: slots in use.
    """

    def __init__(self, outside: int = 0) -> None:
        """The first `outside` tokens of every sequence take no slots."""
        self.trunk = Prefix.empty()
        self.length = 0
        self._branches: dict[Prefix, int] = {}
        self._fresh = True
        self._outside_phases = outside

    def __contains__(self, prefix: Prefix) -> bool:
        return prefix.length <= self._outside_phases or prefix in self._branches or self._on_trunk(prefix)

    def _on_trunk(self, prefix: Prefix) -> bool:
        return not self._fresh and self.trunk.starts_with(prefix)

    def missing(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """The wanted sequences and ancestors that are not cached, parents first."""
        missing_nodes: dict[Prefix, None] = {}
        for prefix in prefixes:
            for node in prefix.back():
                if node in missing_nodes or node in self:
                    break
                missing_nodes[node] = None
        return sorted(missing_nodes, key=lambda node: node.length)

    def twin(self, prefix: Prefix) -> Prefix:
        """The sequence that shares this one's logits: itself."""
        return prefix

    def waves(self, prefixes: Sequence[Prefix]) -> list[list[Prefix]]:
        """The missing sequences, grouped into successive passes: one group."""
        return [self.missing(prefixes)]

    def count_fused(self, rows: Sequence[Prefix]) -> int:
        """How many sequences read features of another model: none."""
        return 0

    def mask(self, *groups: Sequence[Prefix]) -> Tensor | None:
        """The attention mask, bool `[rows, length + rows]`, or `None` if it is causal.

        Groups after the first are separate branches and may repeat each other's sequences; a sequence sees
        its ancestors in its own group, in the first group and in the cache.
        """
        if len(groups) == 1 and self._continues(groups[0]):
            return None
        count = sum(map(len, groups))
        shared_columns = {row: self.length + i for i, row in enumerate(groups[0])}
        is_visible = torch.zeros(count, self.length + count, dtype=torch.bool)
        first_row = 0
        for rows in groups:
            column = shared_columns | {row: self.length + first_row + i for i, row in enumerate(rows)}
            for i, row in enumerate(rows):
                self._see_ancestors(is_visible[first_row + i], row, column)
            first_row += len(rows)
        return is_visible

    def _see_ancestors(self, row_mask: Tensor, row: Prefix, column: dict[Prefix, int]) -> None:
        slots = []
        for node in row.back():
            slot = column.get(node, self._branches.get(node, -1))
            if slot < 0:
                row_mask[: self._slots(node.length)] = True
                break
            slots.append(slot)
        row_mask[slots] = True

    def _continues(self, rows: Sequence[Prefix]) -> bool:
        """Whether the rows are a chain that extends the trunk, and the cache has no branches."""
        if self._branches:
            return False
        parent = self.trunk if not self._fresh else rows[0].parent
        for row in rows:
            if row.parent is not parent:
                return False
            parent = row
        return True

    def add(self, rows: Sequence[Prefix]) -> None:
        """Record sequences appended after the slots in use; for repeated ones the first slot counts."""
        if self._continues(rows):
            self.trunk = rows[-1]
        else:
            slots = {row: self.length + i for i, row in reversed(list(enumerate(rows)))}
            self._branches.update(sorted(slots.items(), key=lambda item: item[1]))
        self._fresh = False
        self.length += len(rows)

    def keep(self, text: Prefix) -> tuple[int, list[int]]:
        """Drop sequences that are neither a prefix nor a continuation of `text`.

        Returns:
            How many leading slots stay in place, and the other slots to keep, in their new order.
        """
        if self._on_trunk(text):
            ahead = [node for node in self._branches if node.starts_with(text)]
            return self._rearrange(self.trunk, self._slots(self.trunk.length), [], ahead)
        ahead = [node for node in self._branches if node.length > text.length and node.starts_with(text)]
        return self._rearrange(*self._line(text), ahead)

    def cut(self, text: Prefix) -> tuple[int, list[int]]:
        """Drop all sequences that are not a prefix of `text`; returns as `keep`."""
        if self._on_trunk(text):
            return self._rearrange(text, self._slots(text.length), [], [])
        return self._rearrange(*self._line(text), [])

    def _line(self, text: Prefix) -> tuple[Prefix, int, list[Prefix]]:
        """The longest cached prefix of `text`, the number of its trunk slots, and its nodes in branches."""
        line: list[Prefix] = []
        trunk = Prefix.empty()
        for node in text.back():
            if node in self._branches:
                line.append(node)
            elif node in self:
                trunk = node  # its ancestors are on the trunk too
                break
        return (line or [trunk])[0], self._slots(trunk.length), line[::-1]

    def _slots(self, length: int) -> int:
        """Slots taken by the first `length` tokens of a sequence."""
        return max(0, length - self._outside_phases)

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
    """Slot bookkeeping of an EAGLE-3 draft head.

    The slot of a sequence holds its last token paired with the target's feature at the token before. Where
    the target has not computed that feature, the head's own output (a guess) from an earlier pass replaces
    it. The first token has no pair and no slot.

    Attributes:
        boundary: number of leading tokens for which the target has features.
    """

    def __init__(self, boundary: int) -> None:
        """`boundary`: prompt length; the target prefills the prompt before its head drafts."""
        super().__init__(outside=1)
        self.boundary = boundary

    def is_grounded(self, prefix: Prefix) -> bool:
        """Whether the target has features of all tokens before a sequence's last one."""
        return prefix.length <= self.boundary + 1

    def waves(self, prefixes: Sequence[Prefix]) -> list[list[Prefix]]:
        """The missing sequences by pass: one that needs its parent's guess comes after it, others first."""
        wave_of: dict[Prefix, int] = {}
        waves: dict[int, list[Prefix]] = {}
        for prefix in self.missing(prefixes):
            wave = None if self.is_grounded(prefix) or prefix.parent is None else wave_of.get(prefix.parent)
            wave_of[prefix] = 0 if wave is None else wave + 1
            waves.setdefault(wave_of[prefix], []).append(prefix)
        return list(waves.values()) or [[]]

    def count_fused(self, rows: Sequence[Prefix]) -> int:
        """How many sequences read the target's features."""
        return sum(map(self.is_grounded, rows))

    def keep(self, text: Prefix) -> tuple[int, list[int]]:
        """Drop all slots computed from guesses: the target now has features of all tokens but the last."""
        verified_text = text.up_to(min(text.length, self.boundary + 1))
        self.boundary = text.length - 1
        return self.cut(verified_text)


class MedusaLineage:
    """Bookkeeping of Medusa heads: which head predicts a sequence's next token, from which feature.

    Head k (from 0) reads the target's feature at the text's last but one token and predicts token k + 1 after
    the text, independent of the draft tokens between. So sequences that extend the text by equally many
    tokens share logits (twins). Nothing is cached; a new text invalidates all logits.

    Attributes:
        boundary: number of leading tokens for which the target has features.
        length: slots in use, always 0.
    """

    length = 0

    def __init__(self, boundary: int, head_count: int) -> None:
        """`boundary`: prompt length; the target prefills the prompt before its heads draft."""
        self.boundary = boundary
        self._heads = head_count
        self._twins: dict[tuple[Prefix, int], Prefix] = {}

    def root_and_head(self, prefix: Prefix) -> tuple[Prefix, int]:
        """The sequence at whose last token the target's feature is read, and the head that reads it.

        Raises:
            InputError: the sequence extends the text further than there are heads.
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
        """The sequence that shares this one's logits: the first one with the same `root_and_head`."""
        return self._twins.setdefault(self.root_and_head(prefix), prefix)

    def missing(self, prefixes: Sequence[Prefix]) -> list[Prefix]:
        """The sequences to compute: the wanted ones, which must not include twins."""
        return list(prefixes)

    def waves(self, prefixes: Sequence[Prefix]) -> list[list[Prefix]]:
        """All missing sequences in one pass."""
        return [self.missing(prefixes)]

    def count_fused(self, rows: Sequence[Prefix]) -> int:
        """How many sequences need fused features: none, each head reads a single feature."""
        return 0

    def add(self, rows: Sequence[Prefix]) -> None:
        """Nothing is cached."""

    def keep(self, text: Prefix) -> None:
        """Drop all logits: the target now has features of all tokens of `text` but the last."""
        self.boundary = text.length - 1
        self._twins.clear()
