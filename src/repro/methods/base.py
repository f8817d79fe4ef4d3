"""Interface of a decoding method: request, answer with its rounds, and the class that serves requests.

Must not know Hydra, datasets or the kind of device. A method is a frozen dataclass: its fields are its
configuration, `places` returns the placement of its models, `serve` is a coroutine that awaits ops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from repro.device.emulated import Device
from repro.models.forward.chooser import Chooser, chooser
from repro.models.forward.network import RANK_COUNT
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session, Verification
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import GREEDY, Sampling
from repro.models.tokens.tree import TokenTree
from repro.records.record import Scalar

if TYPE_CHECKING:  # a list of methods opens no checkpoint
    from repro.models.runtime.model import Model


@dataclass(frozen=True)
class Request:
    """One prompt to answer.

    Attributes:
        id: identifier in the dataset.
        prompt: token ids.
        max_tokens: maximum number of tokens to emit.
        stop: tokens that end the answer; an emitted stop token stays in the answer.
        sampling: sampling parameters.
        seed: seed of the request's random generator.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    stop: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    seed: int = 0

    @cached_property
    def prefix(self) -> Prefix:
        """The prompt as a `Prefix`, made once; drafted and emitted tokens extend it."""
        return Prefix.of(self.prompt)


class Round(NamedTuple):
    """One verification while decoding, or the end of an answer that a lossy method emits unverified.

    Attributes:
        drafted: draft tokens in the tree, without the root.
        rows: verification width: tree nodes verified, root included; 0 without a verification.
        accepted: accepted draft tokens, without those past the end of the answer.
        emitted: tokens added to the answer, bonus token included.
        reach: length of the drafted branch with the longest accepted prefix, up to the end of the answer;
            stopping short of it is a draft error.
        reason: why drafting stopped.
        start: start time in seconds on the device's clock.
        end: end time in seconds on the device's clock.
        possible: draft tokens that the unpruned tree would have got accepted; `None` if not noted.
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
    """An answer with its rounds and times, in seconds on the device's clock.

    Attributes:
        request: the request.
        tokens: emitted tokens.
        rounds: verifications of the decode phase; the first token comes from the prefill and has no round.
        arrived: arrival time of the request.
        first: time of the first token, which the target's prefill gives.
        prefilled: end of all prefills, those of the drafts included; decoding starts here.
        ended: time of the last token.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    arrived: float = 0.0
    first: float = 0.0
    prefilled: float = 0.0
    ended: float = 0.0


class Decoding:
    """State of an answer while decoding: appends tokens until the answer ends and records rounds."""

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
        """Record the first token, which the prefill gives."""
        self._emit([token])
        self.text = self.text.then(token)
        self.generation.first = self.generation.ended = self._device.now
        self.end_prefill()

    def end_prefill(self) -> None:
        """Note that all models have read the prompt: decoding starts now."""
        self.generation.prefilled = self._since = self._device.now

    def round(
        self,
        text: Prefix,
        drafted_count: int = 0,
        row_count: int = 1,
        accepted_count: int = 0,
        reason: str = "",
        reach: int | None = None,
    ) -> None:
        """Record a verification that extended the text to `text`; `reach` defaults to `drafted_count`."""
        emitted = self._emit(text.tokens(start=self.text.length))
        now = self._device.now
        accepted_count = min(accepted_count, emitted)
        reach = drafted_count if reach is None else reach
        if self.done:
            reach = min(reach, emitted)  # draft tokens past the end of the answer are no errors
        record = Round(drafted_count, row_count, accepted_count, emitted, reach, reason, self._since, now)
        self.generation.rounds.append(record)
        self.text, self._since, self.generation.ended = text, now, now

    def verified(self, verification: Verification, drafted_count: int, reason: str) -> None:
        """Record the verification of a tree of `drafted_count` tokens."""
        v = verification
        self.round(v.text, drafted_count, v.rows, v.accepted, reason, v.reach)

    def note_possible(self, trees: Sequence[TokenTree]) -> None:
        """Set `possible` of each round: the length of the final text that its unpruned tree contained."""
        rounds = self.generation.rounds
        for i, tree in enumerate(trees):
            prompt = self.generation.request.prompt
            longest_match = max(prefix.length for prefix in tree.prefixes if self.text.starts_with(prefix))
            length = min(longest_match, len(prompt) + len(self.generation.tokens))
            rounds[i] = rounds[i]._replace(possible=max(rounds[i].accepted, length - tree.root.length))

    def _emit(self, tokens: Sequence[int]) -> int:
        request, tokens_out = self.generation.request, self.generation.tokens
        token_count = len(tokens_out)
        for token in tokens:
            if self.done:
                break
            tokens_out.append(token)
            self.done = token in request.stop or len(tokens_out) >= request.max_tokens
        return len(tokens_out) - token_count


Sessions = Mapping[str, Session]
"""Sessions of a method's models by role (the keys of `places`)."""


class Serving(Protocol):
    """Answers requests one after the other."""

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """Figures of the preparation, for the record."""
        return {}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Answer a request with the method's sessions, opened on `device`."""


@dataclass(frozen=True)
class Method(ABC, Serving):
    """Base class of decoding methods.

    Attributes:
        version: raised by hand when the method's outcomes change (docs/tables.md).
        lossless: whether the answer must equal the target's own; the run then checks it.
        arithmetic: what its numbers are, where a run computes with others; no figure then compares its text
            with the target's. "" if a run computes what the method would.
        arithmetic_by: the compression of a target whose runs compute with that arithmetic; "" for none.
        plain: whether it decodes one token a pass with the target, so that others are compared with it.
        round_metric: registered metric that summarizes the rounds.
        clock: kind of device that it runs on, `emulated` or `local`; "" for both.
        companion: what it needs in the role `draft`, if it has that role: the end of the names of such models
            in `conf/model`, `draft` (a smaller model), `medusa` (heads) or `eagle3` (a head).
        engine: entry of `programs` in the engine file that sets the emulated rates; "" for the defaults.
        format: format in which it is defined, for models whose files name none; "" for the engine's.
    """

    clock: ClassVar[str] = ""
    companion: ClassVar[str] = "draft"
    engine: ClassVar[str] = ""
    format: ClassVar[str] = ""
    version: ClassVar[int] = 1
    lossless: ClassVar[bool] = True
    arithmetic: ClassVar[str] = ""
    arithmetic_by: ClassVar[str] = ""
    plain: ClassVar[bool] = False
    round_metric: ClassVar[str] = "acceptance"

    def check(self, sampling: Sampling) -> None:
        """InputError if the method cannot answer requests sampled like this; most can."""

    @abstractmethod
    def places(self) -> Mapping[str, Placement]:
        """Placement of each model by role (`target`, `draft`)."""

    def variant(self, role: str, model: Model, device: Device) -> Model:
        """What runs in a role on an emulated device: the model itself, unless the method alters it.

        Raises:
            InputError: the method cannot alter this model, or not for this device.
        """
        return model

    @property
    def alters_target(self) -> bool:
        """Whether the target computes with weights that the method makes (`variant`)."""
        return type(self).variant is not Method.variant

    @property
    def processors(self) -> frozenset[str]:
        """Processors that it cannot do without; what it asks of others runs on the fastest there is."""
        return frozenset()

    def computes_on(self, role: str) -> frozenset[str]:
        """Processors that run passes of a role's model, if the device has them, beside those of its place."""
        return self.processors if role == "target" else frozenset()

    def prefill_rows(self, prompt_length: float) -> float:
        """Rows of a pass over a prompt of so many tokens."""
        return prompt_length

    def ranks(self, role: str) -> int:
        """How many of a row's first ranks the method reads of a role's model; greedy decoding alone."""
        return RANK_COUNT

    def look_ahead(self, role: str, answer_length: int) -> int:
        """Most draft tokens that a model's cache holds beside a prompt and an answer of so many tokens."""
        return 0

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Return what serves requests: the method itself, unless it keeps state across requests."""
        return self

    @abstractmethod
    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Answer a request with the sessions of the roles in `places`."""
