"""Token sequences as nodes of a prefix tree: the keys of cache slots, tree nodes and memo entries.

Must not know about models. Sequences with a common prefix share its node objects, so nodes are compared by
identity, and a KV slot is valid for a sequence if its node is an ancestor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

DIGEST_BYTES = 16


def extend_digest(digest: bytes, token: int) -> bytes:
    """The digest of a sequence plus one token; the empty sequence's is empty."""
    return blake2b(digest + token.to_bytes(4, "little", signed=True), digest_size=DIGEST_BYTES).digest()


class Prefix:
    """A token sequence that ends in `token`; create it with `then` on its parent, or with `empty`."""

    __slots__ = ("_children", "_digest", "length", "parent", "token")

    def __init__(self, parent: Prefix | None, token: int) -> None:
        self.parent = parent
        self.token = token
        self.length: int = parent.length + 1 if parent else 0
        self._children: dict[int, Prefix] = {}
        self._digest: bytes | None = None

    @classmethod
    def empty(cls) -> Prefix:
        """The root of a new prefix tree."""
        return cls(None, -1)

    @classmethod
    def of(cls, tokens: Iterable[int]) -> Prefix:
        """A sequence in a new prefix tree."""
        return cls.empty().extend(tokens)

    def then(self, token: int) -> Prefix:
        """This sequence plus one token; returns the same object each time."""
        child = self._children.get(token)
        if child is None:
            child = self._children[token] = Prefix(self, token)
        return child

    def extend(self, tokens: Iterable[int]) -> Prefix:
        """This sequence plus more tokens."""
        end = self
        for token in tokens:
            end = end.then(token)
        return end

    def back(self) -> Iterator[Prefix]:
        """This prefix and its ancestors, longest first, without the empty one."""
        node: Prefix | None = self
        while node is not None and node.length:
            yield node
            node = node.parent

    def tokens(self, after: int = 0) -> list[int]:
        """The tokens from position `after` on."""
        tokens = [node.token for node in self._back_to(after)]
        return tokens[::-1]

    def _back_to(self, length: int) -> Iterator[Prefix]:
        for node in self.back():
            if node.length <= length:
                return
            yield node

    def up_to(self, length: int) -> Prefix:
        """The ancestor (or self) with `length` tokens.

        Raises:
            ValueError: the sequence is shorter than `length`.
        """
        if length > self.length:
            raise ValueError(f"a prefix of {self.length} tokens has no start of length {length}")
        node = self
        while node.length > length:
            assert node.parent is not None
            node = node.parent
        return node

    def starts_with(self, other: Prefix) -> bool:
        """Whether `other` is this prefix or an ancestor of it."""
        return other.length <= self.length and self.up_to(other.length) is other

    @property
    def digest(self) -> bytes:
        """A 16-byte hash of the tokens, independent of the prefix tree."""
        missing = []
        node: Prefix | None = self
        while node is not None and node._digest is None:
            missing.append(node)
            node = node.parent
        for part in reversed(missing):
            before = part.parent._digest if part.parent else b""
            assert before is not None
            part._digest = extend_digest(before, part.token)
        assert self._digest is not None
        return self._digest

    def __repr__(self) -> str:
        return f"Prefix({self.tokens(max(0, self.length - 4))}, length {self.length})"
