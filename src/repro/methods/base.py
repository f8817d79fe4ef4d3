"""What a method is asked, what it answers, and what it must say of itself.

Knows nothing of Hydra, datasets or which kind of device it runs on. A method is a frozen dataclass: its
fields are its configuration, `places` says where its models lie, `serve` is a coroutine that awaits ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

from repro.device.emulated import Device
from repro.models.forward.chooser import Chooser, chooser
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import GREEDY, Sampling
from repro.models.tokens.tree import TokenTree
from repro.records.record import Scalar


@dataclass(frozen=True)
class Request:
    """One prompt to answer.

    Attributes:
        id: the dataset's name for it.
        prompt: its tokens.
        max_tokens: the most tokens to emit.
        stop: tokens that end the answer; one that is emitted stays in it.
        sampling: how tokens are chosen.
        seed: of the request's own source of chance.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    seed: int = 0

    @cached_property
    def prefix(self) -> Prefix:
        """The prompt as the sequence from which all that is drafted and answered grows; made once."""
        return Prefix.of(self.prompt)


class Round(NamedTuple):
    """One call of the verifying model while decoding, or an answer's end that a lossy method did without one.

    Attributes:
        drafted: draft tokens in the tree (the root left out).
        rows: rows that were verified, root included: the verification width; 0 without a call.
        accepted: draft tokens that the target accepted and the answer's end did not cut off.
        emitted: tokens that the round added to the answer, bonus token included.
        reach: length of the drafted branch that the target followed furthest; short of it is an error.
        reason: why drafting stopped.
        start: seconds on the device's clock.
        end: likewise.
        possible: draft tokens that would have been accepted had no node been dropped; `None` where none is.
    """

    drafted: int
    rows: int
    accepted: int
    emitted: int
    reach: int
    reason: str
    start: float
    end: float
    possible: int | None = None


@dataclass
class Generation:
    """An answer and how it came about. Times are seconds on the device's clock.

    Attributes:
        request: what was asked.
        tokens: what was emitted.
        rounds: the calls of the verifying model in the decode phase; the prefill's first token has none.
        arrived: when the request came.
        first: when the first token was out.
        ended: when the last one was.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    arrived: float = 0.0
    first: float = 0.0
    ended: float = 0.0


class Decoding:
    """An answer in the making: takes tokens until the request's end and notes rounds."""

    def __init__(self, request: Request, device: Device) -> None:
        self.text = request.prefix
        self.chooser: Chooser = chooser(request.sampling, request.seed)
        self.done = False
        self.generation = Generation(request, arrived=device.now)
        self._device = device
        self._since = device.now

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.generation.request.max_tokens - len(self.generation.tokens)

    def first(self, token: int) -> None:
        """The prefill's token is out."""
        self._emit([token])
        self.text = self.text.then(token)
        self.generation.first = self.generation.ended = self._since = self._device.now

    def round(
        self,
        text: Prefix,
        drafted: int = 0,
        rows: int = 1,
        accepted: int = 0,
        reason: str = "",
        reach: int | None = None,
    ) -> None:
        """The text has grown to `text` by one call of the verifying model; a chain reaches all drafted."""
        emitted = self._emit(text.tokens(after=self.text.length))
        now = self._device.now
        kept = min(accepted, emitted)
        reach = drafted if reach is None else reach
        made = Round(drafted, rows, kept, emitted, reach, reason, self._since, now)
        self.generation.rounds.append(made)
        self.text, self._since, self.generation.ended = text, now, now

    def note_possible(self, trees: Sequence[TokenTree]) -> None:
        """Note how far each round's whole tree, before any of it was dropped, followed the finished text."""
        rounds = self.generation.rounds
        for i, tree in enumerate(trees):
            end = self.generation.request.prompt
            reached = max(p.length for p in tree.prefixes if self.text.starts_with(p))
            cut = min(reached, len(end) + len(self.generation.tokens))
            rounds[i] = rounds[i]._replace(possible=max(rounds[i].accepted, cut - tree.root.length))

    def _emit(self, tokens: Sequence[int]) -> int:
        request, out = self.generation.request, self.generation.tokens
        before = len(out)
        for token in tokens:
            if self.done:
                break
            out.append(token)
            self.done = token in request.stop or len(out) >= request.max_tokens
        return len(out) - before


Sessions = Mapping[str, Session]
"""A method's models, opened on a device, by the roles of `places`."""


class Serving(Protocol):
    """What answers requests, one after the other."""

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """What a record says of how it was prepared."""
        return {}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Answer a request with the sessions of the method's roles, opened on `device`."""


@dataclass(frozen=True)
class Method(ABC, Serving):
    """A way of answering requests.

    Attributes:
        version: raised by hand when the method's outcomes change (docs/identity.md).
        lossless: whether the answer is the target's own, which the run then checks.
        round_metric: the registered metric that says what its rounds amount to.
        engine: whose rates an emulated device has (`engines` of its file); "" is nobody's in particular.
    """

    engine: ClassVar[str] = ""
    version: ClassVar[int] = 1
    lossless: ClassVar[bool] = True
    round_metric: ClassVar[str] = "acceptance"

    @abstractmethod
    def places(self) -> Mapping[str, Placement]:
        """The roles that the method needs (`target`, `draft`) and where each lies."""

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """What serves on these sessions: the method itself, unless it learns from request to request."""
        return self

    @abstractmethod
    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Answer a request with the sessions of the roles in `places`, opened on `device`."""
