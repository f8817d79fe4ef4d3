"""A cell that serves a trace of requests on an emulated phone, each within its objective (ElastiLM 5).

Owns the order of the work: decide by the device's profile, bill, and see whether the real model answers right
under that decision. Must not know how a system makes its levels, nor who decides.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from repro import data
from repro.answers import Answers, Progress, Question, Requests, Shortening
from repro.core.device import Device, EmulatedDevice
from repro.core.errors import InputError
from repro.core.facts import facts, machine
from repro.core.once import cache_root
from repro.core.op import Op
from repro.core.provenance import Provenance
from repro.core.record import Scalar, Spread, content_hash
from repro.data.config import read_config
from repro.data.traces import Arrival, parse_trace, trace
from repro.dense_cell import DenseCell, Findings, dense
from repro.methods.deciding import (
    Ask,
    ByProfile,
    Check,
    Decider,
    Fixed,
    Largest,
    Nominal,
    Oracle,
    Uniform,
    Unmet,
)
from repro.methods.objectives import Decision, Objective
from repro.methods.service_profile import NOTHING, PROMPTS, DeviceProfile, Spent, spent
from repro.methods.services.base import Service, System, profile_of
from repro.methods.shortening import AnyToken, Scorer
from repro.models.decoder import Decoder
from repro.models.head_model import opened
from repro.models.model import STORED, Model, ModelConfig
from repro.models.named import read_model
from repro.models.shape import Bill, precision
from repro.served_values import Served, answered, billed, rounds

log = logging.getLogger(__name__)


class ServedCell(DenseCell):
    """A cell that `service=NAME` with a trace makes; see `DenseCell`."""

    group: ClassVar[str] = "service"
    code: ClassVar[tuple[str, ...]] = ("repro.served",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As of `DenseCell`; InputError also without a trace, or for a device that is not emulated."""
        if not config.get("trace"):
            raise InputError(
                f"service={config['service']['name']} serves a trace; choose one: +trace=six_apps, or of one "
                "app +trace=standalone"
            )
        super().__init__(config)
        self.service: Service = self.component
        self.trace = parse_trace(config["trace"])
        if config["device"].get("kind") != "emulated":
            raise InputError(
                f"device {config['device']['name']} is no emulated one, and a service is profiled on such; "
                "choose redmi_k60_champion, xiaomi_14, redmi_k70_pro or another phone"
            )
        labels = {"device": str(config["device"]["name"]), "dataset": self.trace.name}
        self.labels |= labels | {"decider": self.service.decider, "trace": self.trace.name}

    def _require_whole(self) -> None:
        """A target without weights is billed alone, and rounded ones answer as they are."""

    @cached_property
    def system(self) -> System:
        """The service's levels, of models as large as the target."""
        if not self.service.family:
            return self.service.system(self.target.bill)
        bills = {name: _bill(one) for name, one in self.family.items()}
        return self.service.system(self.target.bill, bills)

    @cached_property
    def family(self) -> dict[str, ModelConfig]:
        """The models that serve beside the target."""
        return {name: read_model(name) for name in self.service.family}

    @cached_property
    def members(self) -> dict[str, Model]:
        """Those of the family, if the checkpoints of all are at hand; else their costs alone are known."""
        try:
            return {name: opened(config) for name, config in self.family.items()}
        except InputError as reason:
            log.info("costs alone: %s", reason)
            return {}

    @property
    def reads_corpus(self) -> bool:
        """Whether a level is calibrated."""
        made = self.service.compression(min(self.system.levels))
        return self.computes and made is not None and made.calibrated

    @property
    def computes(self) -> bool:
        """Whether a checkpoint answers; else costs alone are known."""
        return bool(self.requests) and (bool(self.members) or not self.family)

    @cached_property
    def requests(self) -> dict[str, Requests]:
        """The datasets that apps draw from."""
        if self.target.folder is None:
            return {}
        named = dict.fromkeys(app.dataset for app in self.trace.apps if app.dataset)
        count, folder = self.config["prompts"], self.config.get("data_dir")
        configs = {name: read_config(name) for name in named}
        return {
            name: Requests(one, data.load_rows(one, count, folder), self.target.tokenizer)
            for name, one in configs.items()
        }

    @cached_property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All requests, in the order in which they come."""
        rows = {name: len(one.rows.rows) for name, one in self.requests.items()}
        blanks = {app.source: self.trace.requests for app in self.trace.apps if app.tokens}
        return trace(self.trace, rows | blanks)

    @property
    def inputs(self) -> dict[str, str]:
        """See `DenseCell`."""
        rows = {name: one.rows.digest for name, one in self.requests.items()}
        return super().inputs | rows | {"device": content_hash(self.config["device"])}

    @property
    def asked(self) -> dict[str, Any]:
        """See `DenseCell`."""
        return super().asked | {name: self.config[name] for name in ("trace", "prompts", "seed")}

    def check(self) -> None:
        """As of `DenseCell`; InputError also for a trace of rows that no checkpoint reads."""
        super().check()
        lacking = [app.name for app in self.trace.apps if app.dataset]
        if self.target.folder is None and lacking:
            raise InputError(
                f"{self.target.config.name} has no checkpoint, and apps {', '.join(lacking)} ask for rows of "
                "datasets; choose a target that has one, or prompts of blanks (+trace=standalone "
                "app.dataset=null app.tokens=256)"
            )

    def find(self, progress: Progress) -> Findings:
        """Serve all requests."""
        device = EmulatedDevice(machine(self.config["device"], ""))
        asks = [self._ask(number, one) for number, one in enumerate(self.arrivals)]
        profile = profile_of(self.system, device, _lengths(asks))
        served = list(self._serve(device, profile, asks, progress))
        right = self._right(served, progress) if self.computes else None
        plain = self._plain(served, progress) if self.computes else None
        values = billed(served) | self._memory(asks)
        if right is not None and plain is not None:
            values |= answered(served, right, plain) | {"chance": self._chance(served)}
        spread: dict[str, Spread] = {}
        if isinstance(error := values.get("accuracy_stderr"), float):
            spread["accuracy"] = error
        return Findings(values, spread, list(rounds(served, right)))

    def _ask(self, number: int, one: Arrival) -> Ask:
        app, name = one.app, f"{one.app.name}/{one.row}"
        shares = {what: getattr(app, what) for what in ("ttft", "tpot", "time", "energy")}
        asked = Objective(**shares) if any(shares.values()) else Objective(ttft=1.0)
        if app.dataset is None:
            return Ask(f"{name}/{number}", (0,) * (app.tokens or 1), self.trace.answer, asked)
        requests = self.requests[app.dataset]
        granule, spare = self.service.granule, requests.spare
        return Ask(f"{name}/{number}", requests.read(one.row), self.trace.answer, asked, spare, granule)

    def _serve(
        self, device: Device, profile: DeviceProfile, asks: Sequence[Ask], progress: Progress
    ) -> Iterator[Served]:
        """Decide and bill, one request after the other: what a switch takes depends on the level before."""
        decider = self._decider(profile, asks, progress)
        rule = self._rule(profile)
        check = Check(decider, rule, self.service.fallback, self.config["seed"])
        took: dict[tuple[Op, ...], Spent] = {}
        present: float | None = None
        for number, (arrival, ask) in enumerate(zip(self.arrivals, asks, strict=True)):
            if not number % 20:
                progress("deciding", number, len(asks))
            ops = (*decider.ops(ask, device.main), *self._scoring(ask, device.main))
            deciding = took.get(ops) or took.setdefault(ops, _spent(device, ops))
            full = profile.whole(len(ask.prompt), ask.answer)
            decision, fell_back = self._decided(check, ask, present, deciding)
            read = ask.read(decision.prompt)
            costs = profile.costs(decision.model, read, ask.answer, present, deciding)
            switched, present = decision.model != present, decision.model
            met = ask.objective.met(costs, full)
            took_over = profile.levels[decision.model].switch if switched else NOTHING
            yield Served(arrival, ask, decision, fell_back, deciding, took_over, costs, full, met)

    def _decided(
        self, check: Check, ask: Ask, present: float | None, deciding: Spent
    ) -> tuple[Decision, bool]:
        """A decision; where none meets the objective, the lightest."""
        if self.service.decider == "fixed":
            return check.decider.decide(ask, ()), False
        try:
            decision, fell_back = check.decide(ask, present, deciding)
        except Unmet:
            return Decision(min(self.system.prompts), min(self.system.levels)), True
        return decision, fell_back

    def _rule(self, profile: DeviceProfile) -> ByProfile | Nominal:
        if self.service.check == "nominal":
            return Nominal(self.system.prompts, tuple(sorted(self.system.levels)))
        return ByProfile(profile, self.system.prompts)

    def _decider(self, profile: DeviceProfile, asks: Sequence[Ask], progress: Progress) -> Decider:
        service, seed = self.service, self.config["seed"]
        if service.decider == "decision_head":
            from repro.methods import dual_head  # late: transformers takes seconds to import

            return dual_head.decision_head(self.target.tokenizer)
        if service.decider == "oracle":
            return Oracle(self._table(profile, asks, progress), seed)
        if service.decider == "fixed":
            return Fixed(Decision(service.fixed_prompt, service.fixed_model))
        return Uniform(seed) if service.decider == "random" else Largest()

    def _table(
        self, profile: DeviceProfile, asks: Sequence[Ask], progress: Progress
    ) -> dict[str, list[Decision]]:
        """Of each request the decisions that answer it right, among those that may meet its objective."""
        if not self.computes:
            raise InputError("decider=oracle knows answers, and nothing answers here; choose another decider")
        rule = self._rule(profile)
        # On the level already there is nothing to switch, so that no decision is left out.
        tried = {
            ask.id: [
                one for level in self.system.levels for one in rule.feasible(ask, level) if one.model == level
            ]
            for ask in asks
        }
        wanted = {
            (ask.id, decision): Question(arrival.app.source, arrival.row, decision)
            for arrival, ask in zip(self.arrivals, asks, strict=True)
            for decision in tried[ask.id]
        }
        found = self._found(set(wanted.values()), progress)
        return {
            name: [decision for decision in decisions if found[wanted[name, decision]]]
            for name, decisions in tried.items()
        }

    @cached_property
    def scorer(self) -> Scorer | None:
        """What says which tokens of a prompt matter."""
        if self.service.scorer in ("score_head", "llmlingua2"):
            from repro.methods import dual_head  # late: as above

            return dual_head.score_head(self.target.tokenizer)
        return AnyToken(self.config["seed"]) if self.service.scorer == "random" else None

    def _scoring(self, ask: Ask, on: str) -> tuple[Op, ...]:
        return self.scorer.ops(ask.prompt, on) if self.scorer else ()

    def _answers(self, level: float) -> Answers:
        """What the model answers that serves at a level."""
        named = self.system.models.get(level)
        model = self.members[named] if named else self.target
        folder, rounded = model.folder, model.config.rounded
        assert folder is not None
        requests = self.requests
        if named:
            requests = {name: replace(one, text=model.tokenizer) for name, one in requests.items()}
        return Answers(
            model.digest,
            lambda: _weights(folder, rounded),
            self.service.compression,
            self.corpus.sequences,
            self.corpus.digest,
            requests,
            Shortening(self.service.scorer, self.scorer, self.service.granule),
            cache_root(),
        )

    def _found(self, wanted: Collection[Question], progress: Progress) -> dict[Question, bool]:
        """Whether each question is answered right, by the model of its level."""
        found: dict[Question, bool] = {}
        served = {self.system.models.get(one.decision.model) for one in wanted}
        for name in sorted(served, key=str):
            asked = [one for one in wanted if self.system.models.get(one.decision.model) == name]
            found |= self._answers(asked[0].decision.model).right(asked, progress)
        return found

    def _right(self, served: Sequence[Served], progress: Progress) -> list[bool]:
        questions = [_question(one, one.decision) for one in served]
        found = self._found(set(questions), progress)
        return [found[one] for one in questions]

    def _plain(self, served: Sequence[Served], progress: Progress) -> list[bool]:
        """What the target as it is answers on the same rows."""
        questions = [_question(one, Decision(1.0, 1.0)) for one in served]
        found = self._answers(1.0).right(set(questions), progress)
        return [found[one] for one in questions]

    def _chance(self, served: Sequence[Served]) -> float:
        return 100.0 * mean(self.requests[one.arrival.app.source].chance[one.arrival.row] for one in served)

    def _memory(self, asks: Sequence[Ask]) -> dict[str, Scalar]:
        longest = max(len(ask.prompt) + ask.answer for ask in asks)
        return {"memory": self.system.resident_bytes(longest)}

    def _provenance(self, started: str) -> Provenance:
        found = super()._provenance(started)
        fitted = {cell for fact in facts(self.config["device"]) for cell in fact.cells}
        return replace(found, fitted=tuple(sorted(fitted)), notes=tuple(self._notes()))

    def _notes(self) -> Iterator[str]:
        yield "latencies are those of the device's profile; requests do not overlap"
        if not self.computes:
            yield "costs alone: no checkpoint answers"
        if self.service.scorer == "llmlingua2":
            yield "the trained score head chooses tokens in LLMLingua-2's place, whose encoder is billed"


def _bill(config: ModelConfig) -> Bill:
    """What a family's model costs: by its shape, since its checkpoint may not be at hand."""
    assert config.shape is not None, "a family's models are billed by their shapes"
    return Bill(config.shape, precision(config.precision or STORED[config.dtype]))


def _question(one: Served, decision: Decision) -> Question:
    return Question(one.arrival.app.source, one.arrival.row, decision)


def _lengths(asks: Sequence[Ask]) -> tuple[int, ...]:
    """Tokens to profile a device at: the usual ones, and what the longest request needs beyond."""
    longest = max(len(ask.prompt) + ask.answer for ask in asks)
    return (*PROMPTS, *([longest] if longest > PROMPTS[-1] else []))


def _spent(device: Device, ops: Sequence[Op]) -> Spent:
    """What these ops take on a device, one after the other."""

    async def run() -> Spent:
        start = device.now
        for op in ops:
            await device.run(op)
        return spent(device, start) if ops else NOTHING

    return device.play(run())


@lru_cache(maxsize=1)
def _weights(folder: Path, rounded: int | None) -> Decoder:
    """A checkpoint, dense in fp32, kept for all levels of a cell; rounded if that is asked for."""
    return dense(folder)
