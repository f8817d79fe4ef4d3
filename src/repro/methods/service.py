"""The elastic language-model service: apps bind to it, each call is decided, switched, read and answered.

Owns one model on one device and the level that it is on (ElastiLM 3.1, 4). Must not know how a decision
comes about, nor whose rows the prompts are. Requests are served one after the other, as on a phone with one
user (5.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from repro.core.device import Device
from repro.core.errors import InputError
from repro.core.op import Op
from repro.methods.base import Request
from repro.methods.deciding import Ask, Check
from repro.methods.decoding.autoregressive import decode
from repro.methods.objectives import Costs, Decision, Objective, kept_tokens
from repro.methods.service_profile import ran, spent
from repro.methods.shortening import Scorer, Text, shortened
from repro.methods.switching import Switching
from repro.models import lora
from repro.models.elastic import Kept, UnitDecoder, submodel
from repro.models.lora import Lora
from repro.models.network import DecoderNetwork
from repro.models.placement import RESIDENT
from repro.models.prefix import Prefix
from repro.models.session import Session
from repro.models.shape import Bill


@dataclass(frozen=True)
class Level:
    """One level of the model: how much of each layer, its adapters if any, what a device is billed for it."""

    kept: Kept
    bill: Bill
    adapters: Lora | None = None


@dataclass(frozen=True)
class Reply:
    """What a call gives back.

    Attributes:
        text: the answer.
        tokens: its tokens.
        decision: under which levels of prompt and model it was made.
        fell_back: the decider's own decision would have broken the objective.
        switched: the model had to change its level.
        prompt: tokens that the model read.
        costs: what it took on the device, deciding and switching among it.
    """

    text: str
    tokens: tuple[int, ...]
    decision: Decision
    fell_back: bool
    switched: bool
    prompt: int
    costs: Costs


@dataclass(frozen=True)
class App:
    """An app that is bound to the service; its calls' objective unless a call brings its own."""

    name: str
    objective: Objective
    service: LLMService

    def call_llm(self, prompt: str, objective: Objective | None = None, max_tokens: int = 16) -> Reply:
        """The paper's callLLM(): see `LLMService.call`."""
        return self.service.call(self.name, prompt, objective or self.objective, max_tokens)

    def unbind(self) -> None:
        """Leave the service; its name is free again."""
        self.service.unbind(self.name)


@dataclass
class LLMService:
    """One elastic model on one device, shared by all apps.

    Attributes:
        device: where it runs; on an emulated one tokens are real and time is the device's.
        text: the model's tokenizer.
        whole: as `elastic.reordered` gives it; levels are views of it.
        levels: of the model, by their shares.
        switching: what it takes to change them.
        check: decides, and lets nothing through that breaks an objective.
        scorer: of prompts' tokens; None for a rule that knows whole prompts alone.
        stop: tokens that end an answer.
        on: the level that the model is on; None before the first call.
    """

    device: Device
    text: Text
    whole: UnitDecoder
    levels: Mapping[float, Level]
    switching: Switching
    check: Check
    scorer: Scorer | None = None
    stop: frozenset[int] = frozenset()
    on: float | None = None
    _bound: set[str] = field(default_factory=set)
    _calls: int = 0
    _session: Session | None = None

    def bind(self, app: str, objective: Objective) -> App:
        """An app may call from now on.

        Raises:
            InputError: another one of that name is bound.
        """
        if app in self._bound:
            raise InputError(f"app {app!r} is bound already; unbind it or choose another name")
        self._bound.add(app)
        return App(app, objective, self)

    def unbind(self, app: str) -> None:
        """An app may not call any more."""
        self._require(app)
        self._bound.remove(app)

    def call(self, app: str, prompt: str, objective: Objective, max_tokens: int) -> Reply:
        """Answer a prompt within an objective.

        Raises:
            InputError: the app is not bound, the prompt is empty, or no token is asked for.
            Unmet: nothing meets the objective; the service stays on its level.
        """
        self._require(app)
        tokens = tuple(self.text.encode(prompt))
        if not tokens or max_tokens < 1:
            raise InputError(f"app {app} asks for {max_tokens} tokens after {len(tokens)}; give one of each")
        self._calls += 1
        ask = Ask(f"{app}/{self._calls}", tokens, max_tokens, objective)
        return self.device.play(self._serve(ask))

    def _require(self, app: str) -> None:
        if app not in self._bound:
            raise InputError(
                f"app {app!r} is not bound; bound are {', '.join(sorted(self._bound)) or 'none'}"
            )

    async def _serve(self, ask: Ask) -> Reply:
        device, arrived = self.device, self.device.now
        with device.phase("decide"):
            deciding = await ran(device, self._deciding(ask))
        decision, fell_back = self.check.decide(ask, self.on, deciding)
        prompt = self._shortened(ask.prompt, decision.prompt)
        switched = decision.model != self.on
        if switched:
            with device.phase("switch"):
                await self._switch(decision.model)
        session = self._session
        assert session is not None
        session.start(Prefix.of(prompt))
        request = Request(ask.id, prompt, ask.answer, self.stop)
        made = await decode(request, device, session)
        steps = len(made.tokens) - 1
        took = spent(device, arrived)
        costs = Costs(
            ttft=made.first - arrived,
            tpot=(made.ended - made.first) / steps if steps else 0.0,
            time=took.seconds,
            energy=took.joules,
        )
        text = self.text.decode(made.tokens)
        return Reply(text, tuple(made.tokens), decision, fell_back, switched, len(prompt), costs)

    def _deciding(self, ask: Ask) -> tuple[Op, ...]:
        on = self.device.main
        scoring = self.scorer.ops(ask.prompt, on) if self.scorer else ()
        return (*self.check.decider.ops(ask, on), *scoring)

    async def _switch(self, level: float) -> None:
        """Come to another level; its views are taken within the last op, or at once where there is none."""
        to = self.levels[level]
        ops = self.switching.ops(to.bill, self.device.main)
        if ops:
            await ran(self.device, (*ops[:-1], replace(ops[-1], compute=lambda: self._open(to))))
        else:
            self._open(to)
        self.on = level

    def _open(self, to: Level) -> None:
        views = submodel(self.whole, to.kept)
        decoder = lora.attached(views, to.adapters) if to.adapters else views
        self._session = Session("model", self.device, to.bill, DecoderNetwork(decoder), RESIDENT)

    def _shortened(self, tokens: tuple[int, ...], level: float) -> tuple[int, ...]:
        """The tokens with the highest scores, of equals the first, in their own order."""
        count = kept_tokens(len(tokens), level)
        if count == len(tokens):
            return tokens
        if self.scorer is None:
            raise InputError(
                f"a prompt is to be shortened to {level:g}, and nothing scores its tokens; give a scorer or "
                "a rule with whole prompts alone"
            )
        return shortened(tokens, count, self.scorer.scores(tokens))


def bind_llm_service(service: LLMService, app: str, objective: Objective) -> App:
    """The paper's bindLLMService() (ElastiLM 4): an app's hold on the service, several at once.

    Raises:
        InputError: another app of that name is bound.
    """
    return service.bind(app, objective)
