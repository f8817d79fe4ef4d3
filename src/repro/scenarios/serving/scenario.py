"""The serving scenario: a trace of requests on an emulated phone, each with an SLO (ElastiLM 5).

Owns the order of steps: decide from the device's profile, charge the costs, and check whether the model
answers correctly at the chosen levels. Must not know how a system makes its levels, nor from which models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from statistics import mean
from typing import Any, ClassVar

from repro import data
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.yaml_file import read_mapping
from repro.data.config import DatasetConfig, read_config
from repro.data.traces import Arrival, parse_trace, trace
from repro.device.emulated import Device, EmulatedDevice
from repro.device.op import Op
from repro.methods.serving.deciders import (
    ByProfile,
    Decider,
    Fixed,
    Infeasible,
    Largest,
    Nominal,
    Oracle,
    ServiceRequest,
    SloGuard,
    Uniform,
)
from repro.methods.serving.service_profile import NOTHING, PROMPTS, DeviceProfile, Spent, ran
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo
from repro.methods.serving.systems.base import Service, System, profile_of
from repro.models.checkpoints.validate import stored_notes
from repro.models.costs.model_cost import precision
from repro.records.identity import dataset_asked, device_asked, model_asked, version_of
from repro.records.record import FEWEST, Scalar, Spread
from repro.scenarios import versions
from repro.scenarios.base import Findings, Progress, named
from repro.scenarios.emulation import EmulatedCell
from repro.scenarios.offline import OfflineScenario
from repro.scenarios.sections import OF_ANSWERS
from repro.scenarios.serving.answer_cache import Query
from repro.scenarios.serving.figures import ServedRequest, answered, billed, rounds
from repro.scenarios.serving.level_models import LevelModels

DEMONSTRATION = "demonstration"
"""The trace of a service without one."""
CORPUS_OF_DEMONSTRATION = "demonstration_assistant"

ANYTHING = LatencySlo(ttft=1.0)
"""Default SLO for apps without one; `decider=fixed` enforces none."""


class ServingScenario(OfflineScenario):
    """The scenario selected by `service=NAME` with a trace; see `OfflineScenario`."""

    group: ClassVar[str] = "service"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """As `OfflineScenario`; also InputError for a device that is not emulated."""
        given = config.get("trace") or read_mapping(conf_dir() / "trace" / f"{DEMONSTRATION}.yaml")
        config = {**config, "trace": given}
        if given["name"] == DEMONSTRATION:  # it needs no data beside this project's own
            texts = read_mapping(conf_dir() / "dataset" / f"{CORPUS_OF_DEMONSTRATION}.yaml")
            config["corpus"] = {"dataset": texts, "texts": 6, "tokens": 128}
        self.cell = EmulatedCell(config, format="fp16")
        super().__init__(self.cell.config)
        self.service: Service = self.component
        self.trace = parse_trace(config["trace"])
        if config["device"].get("kind") != "emulated":
            raise InputError(
                f"device {config['device']['name']} is no emulated one, and a service is profiled on such; "
                "choose redmi_k60_champion, xiaomi_14, redmi_k70_pro or another phone"
            )
        self.cell.machine()  # finds numbers out of range

    @classmethod
    def labels_of(cls, config: Mapping[str, Any]) -> dict[str, str]:
        """As `OfflineScenario`, with the device, the trace as `dataset`, and the decider."""
        own = named(config, "device", "trace")
        own["trace"] = own["trace"] if config.get("trace") else DEMONSTRATION
        decider = str(config[cls.group]["decider"])
        return super().labels_of(config) | {
            "device": own["device"],
            "dataset": own["trace"],
            "decider": decider,
        }

    @property
    def unread(self) -> Mapping[str, str]:
        """See `OfflineScenario`."""
        unread = dict.fromkeys((*OF_ANSWERS, "dataset", "skip"), "the trace says what a service is asked")
        if self.trace.name == DEMONSTRATION:
            unread["corpus"] = "the demonstration has texts of its own"
        return unread

    def _require_whole(self) -> None:
        """Allow targets without weights (a cost-only run) and rounded ones."""

    @cached_property
    def datasets(self) -> dict[str, DatasetConfig]:
        """The datasets that the trace's apps ask, by name."""
        return {app.dataset: read_config(app.dataset) for app in self.trace.apps if app.dataset}

    @cached_property
    def level_models(self) -> LevelModels:
        """The models that answer."""
        count, folder = self.config["prompts"], self.config.get("data_dir")
        rows = {name: (one, data.load_rows(one, count, folder)) for name, one in self.datasets.items()}
        return LevelModels(self.service, self.target, rows, self.trace.concise, self.config["seed"])

    @property
    def system(self) -> System:
        """The service's levels, with costs at the target's size."""
        return self.level_models.system

    @property
    def reads_corpus(self) -> bool:
        """Whether the levels' compression needs calibration data."""
        return self.level_models.calibrated

    @cached_property
    def arrivals(self) -> tuple[Arrival, ...]:
        """All requests in the order of arrival."""
        rows = {name: len(one.rows.rows) for name, one in self.level_models.requests.items()}
        blanks = {app.source: self.trace.requests for app in self.trace.apps if app.tokens}
        return trace(self.trace, rows | blanks)

    @property
    def inputs(self) -> dict[str, str]:
        """See `OfflineScenario`."""
        return super().inputs | self.level_models.inputs

    @property
    def decisive_settings(self) -> dict[str, Any]:
        """See `Scenario`; with a corpus that its levels may not need."""
        own = {name: self.config[name] for name in (self.group, "trace", "prompts", "seed", "corpus")}
        own["target"] = model_asked(self.config["target"])
        return own | {"device": device_asked(self.cell.described)}

    @property
    def asked(self) -> dict[str, Any]:
        """See `OfflineScenario`."""
        own = {name: self.config[name] for name in ("trace", "prompts", "seed")}
        own["device"] = device_asked(self.cell.described)
        own["datasets"] = {n: dataset_asked(asdict(one)) for n, one in self.datasets.items()}
        return super().asked | own

    @property
    def versions(self) -> dict[str, int]:
        """See `OfflineScenario`; adds the cost model and the compression that makes the levels."""
        level = self.service.compression(LEVELS[0])
        own = versions.COSTS if level is None else {**versions.COSTS, "level": version_of(type(level))}
        if self._model.stored != precision("fp16"):
            own = {**own, "heads": 2}  # which ran in fp16 beside any target before
        if self.trace.answer < 2:
            own = {**own, "time per later token": 2}  # which was 0 of one token before
        return super().versions | own

    def check(self) -> None:
        """As `OfflineScenario`; also InputError for a trace of dataset examples without a checkpoint."""
        lacking = [app.name for app in self.trace.apps if app.dataset]
        if self.target.folder is None and lacking:
            raise InputError(
                f"{self.target.config.name} has no checkpoint, and apps {', '.join(lacking)} ask for rows of "
                "datasets; choose a target that has one, or prompts of blanks (trace=standalone "
                "app.dataset=null app.tokens=256)"
            )
        if self.target.folder:
            super().check()
        if self.service.decider == "fixed" and self.service.fixed_model not in self.system.levels:
            choices = ", ".join(f"{level:g}" for level in sorted(self.system.levels))
            raise InputError(f"service.fixed_model is {self.service.fixed_model}; its levels are {choices}")
        if self.service.decider == "oracle" and not self.level_models.known:
            raise InputError("service.decider is oracle, and no answers are known; choose another decider")

    def find(self, progress: Progress) -> Findings:
        """Serve all requests."""
        device = EmulatedDevice(self.cell.machine())
        requests = [self._request(number, one) for number, one in enumerate(self.arrivals)]
        longest = max(len(request.prompt) + request.answer for request in requests)
        profile = profile_of(self.system, device, _points(longest))
        served = list(self._serve(device, profile, requests, progress))
        values = billed(served) | self._memory(longest)
        right = None
        if self.level_models.known:
            questions = [_question(one.arrival, one.decision) for one in served]
            found = self.level_models.right(set(questions), self.corpus, progress)
            plain = self.level_models.plain(set(questions), progress)
            right = [found[one] for one in questions]
            values |= answered(served, right, [plain[one] for one in questions])
            values["chance"] = 100.0 * mean(map(self._chance, self.arrivals))
        spread: dict[str, Spread] = {}
        if isinstance(error := values.get("accuracy_stderr"), float) and len(served) >= FEWEST:
            spread["accuracy"] = error
        if isinstance(low := values.get("difference_low"), float):
            high = values["difference_high"]
            assert isinstance(high, float)
            spread["difference"] = (low, high)
        about = {"memory": {"emulated_dram": round(self.system.resident_bytes(longest))}}
        return Findings(values, spread, list(rounds(served, right)), provenance=about)

    def _memory(self, longest: int) -> dict[str, Scalar]:
        """Peak memory in bytes, and extra memory as shares of the full model's weights."""
        system, whole = self.system, self.system.full.model_bytes
        return {
            "memory": system.resident_bytes(longest),
            "adapter_share": system.adapter_bytes / whole,
            "extra_memory": system.weights / whole - 1.0,
        }

    def _request(self, number: int, one: Arrival) -> ServiceRequest:
        app, name = one.app, f"{one.app.name}/{one.row}/{number}"
        shares = {what: getattr(app, what) for what in ("ttft", "tpot", "time", "energy")}
        asked = LatencySlo(**shares) if any(share is not None for share in shares.values()) else ANYTHING
        if app.tokens:
            return ServiceRequest(name, (0,) * app.tokens, self.trace.answer, asked)
        requests, granule = self.level_models.requests[app.source], self.service.granule
        return ServiceRequest(name, requests.read(one.row), self.trace.answer, asked, requests.spare, granule)

    def _chance(self, one: Arrival) -> float:
        return self.level_models.requests[one.app.source].chance(one.row)

    def _serve(
        self, device: Device, profile: DeviceProfile, requests: Sequence[ServiceRequest], progress: Progress
    ) -> Iterator[ServedRequest]:
        """Decide and cost the requests in order, since the cost of a switch depends on the previous level."""
        rule, seed = self._rule(profile), self.config["seed"]
        check = SloGuard(self._decider(rule, requests, progress), rule, self.service.fallback, seed)
        took: dict[tuple[Op, ...], Spent] = {}
        present: float | None = None
        for number, (arrival, request) in enumerate(zip(self.arrivals, requests, strict=True)):
            if not number % 20:
                progress("deciding", number, len(requests))
            ops = self._deciding(check.decider, request, device.main)
            deciding = took.get(ops) or took.setdefault(ops, device.play(ran(device, ops)))
            decision, fell_back = self._decided(check, request, present, deciding)
            read = request.read(decision.prompt)
            costs, first = (
                profile.costs(decision.model, read, answer, present, deciding)
                for answer in (request.answer, 1)
            )
            full = profile.whole(len(request.prompt), request.answer)
            switch = NOTHING if decision.model == present else profile.levels[decision.model].switch
            present, met = decision.model, request.objective.met(costs, full)
            yield ServedRequest(
                arrival, request, decision, fell_back, deciding, switch, costs, first, full, met
            )

    def _deciding(self, decider: Decider, request: ServiceRequest, on: str) -> tuple[Op, ...]:
        """Ops that run before the prefill: decider and scorer."""
        scorer = self.level_models.scorer
        return (*decider.ops(request, on), *(scorer.ops(request.prompt, on) if scorer else ()))

    def _decided(
        self, check: SloGuard, request: ServiceRequest, present: float | None, deciding: Spent
    ) -> tuple[Decision, bool]:
        """The decision and whether it is a fallback; the smallest levels if no decision meets the SLO."""
        if self.service.decider == "fixed":
            return check.decider.decide(request, ()), False
        try:
            decision, fell_back = check.decide(request, present, deciding)
        except Infeasible:
            return Decision(min(self.system.prompts), min(self.system.levels)), True
        return decision, fell_back

    def _rule(self, profile: DeviceProfile) -> ByProfile | Nominal:
        if self.service.check == "nominal":
            return Nominal(self.system.prompts, tuple(sorted(self.system.levels)))
        return ByProfile(profile, self.system.prompts)

    def _decider(
        self, rule: ByProfile | Nominal, requests: Sequence[ServiceRequest], progress: Progress
    ) -> Decider:
        service, seed = self.service, self.config["seed"]
        if service.decider == "decision_head":
            from repro.methods.serving import dual_head  # late: transformers takes seconds to import

            return dual_head.decision_head(self.target.tokenizer, stored=self._model.stored)
        if service.decider == "oracle":
            return Oracle(self._table(rule, requests, progress), seed)
        if service.decider == "fixed":
            return Fixed(Decision(service.fixed_prompt, service.fixed_model))
        return Uniform(seed) if service.decider == "random" else Largest()

    def _table(
        self, rule: ByProfile | Nominal, requests: Sequence[ServiceRequest], progress: Progress
    ) -> dict[str, list[Decision]]:
        """By request, the decisions that answer it correctly among those that can meet its SLO."""
        wanted = {
            # Pass each level as the present one: without switching costs no feasible decision is left out.
            (request.id, one): _question(arrival, one)
            for arrival, request in zip(self.arrivals, requests, strict=True)
            for level in self.system.levels
            for one in rule.feasible(request, level)
            if one.model == level
        }
        found = self.level_models.right(set(wanted.values()), self.corpus, progress)
        right: dict[str, list[Decision]] = {request.id: [] for request in requests}
        for (name, decision), question in wanted.items():
            if found[question]:
                right[name].append(decision)
        return right

    @property
    def origin(self) -> dict[str, Any]:
        """See `Scenario`."""
        found = self.cell.fitted_cells
        own = {"fitted": tuple(sorted(found | set(self.system.fitted))), "notes": tuple(self._notes())}
        unknown = {} if self.level_models.known else {"weights": "none", "dequantized": False}
        return super().origin | own | unknown

    def _notes(self) -> Iterator[str]:
        yield "latencies are those of the device's profile; requests do not overlap"
        if self.trace.name == DEMONSTRATION:
            yield "a demonstration on questions written for it, no benchmark"
        if self.level_models.known:
            yield from stored_notes(self.target.folder)
        else:
            yield "costs alone: no checkpoint answers"
        if self.service.scorer == "llmlingua2":
            yield "the trained score head chooses tokens in LLMLingua-2's place, whose encoder is billed"


def _question(arrival: Arrival, decision: Decision) -> Query:
    return Query(arrival.app.source, arrival.row, decision)


def _points(longest: int) -> tuple[int, ...]:
    """Prompt lengths to profile: `PROMPTS`, and the longest request's if it is longer."""
    return (*PROMPTS, *([longest] if longest > PROMPTS[-1] else []))
