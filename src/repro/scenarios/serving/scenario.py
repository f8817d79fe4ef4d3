"""What is done in a serving cell: requests are decided, billed and answered in order (ElastiLM 5).

Owns the order of the steps, the figures, and the file of answers that were computed before. Must not know how
a system makes its levels, nor how a cell is checked and keyed (`asked`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch

from repro.core.errors import InputError
from repro.data.corpus import Corpus
from repro.data.prompts import Tokens
from repro.data.traces import Arrival
from repro.device.emulated import Device, EmulatedDevice
from repro.device.op import Op
from repro.methods.compression.base import Compression
from repro.methods.serving import llmlingua2
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
from repro.methods.serving.service import profile_of
from repro.methods.serving.service_profile import NO_COST, PROMPT_LENGTHS, DeviceProfile, Spent, run_ops
from repro.methods.serving.shortening import AnyToken, Scorer, shorten_prompt
from repro.methods.serving.slo import Decision, LatencySlo, RequestCosts, kept_tokens
from repro.methods.serving.tlm import tiny_language_model
from repro.models.analysis.likelihood import Reader
from repro.models.costs.model_cost import Precision
from repro.models.quantization import round_to_nearest
from repro.models.transformer.decoder import Decoder
from repro.records.build_cache import memory_root
from repro.records.identity import dataset_asked, files_read, version_of
from repro.records.record import Round, Scalar, content_hash
from repro.records.row_file import RowFile
from repro.scenarios.base import WEIGHT_VERSIONS, Findings, Progress, spreads
from repro.scenarios.serving.asked import DatasetRequests, ServingCell, score_head

DEFAULT_SLO = LatencySlo(ttft=1.0)
"""Default SLO for apps without one; `decider=fixed` enforces none."""

MOST_DECODERS = 6
"""Compressed models kept in memory, each at most the size of the full model."""

_compressed_decoders: dict[tuple[str, Compression | None, str], Decoder] = {}

Rule = ByProfile | Nominal
"""By which costs a decision is checked."""


class Query(NamedTuple):
    """An example of a dataset, and the levels that serve it."""

    dataset: str
    row: int
    decision: Decision


class ServedRequest(NamedTuple):
    """One request, as it was served.

    Attributes:
        arrival: its app, example and arrival time.
        request: its prompt and SLO.
        decision: levels of prompt and model.
        fell_back: True if the decider's own decision would have violated the SLO.
        deciding: cost of deciding and scoring.
        switch: cost of switching to the level; zero if the model was on it already.
        costs: total cost of the request.
        first_token_costs: its cost to the first token.
        full_model_costs: the full model's cost for it.
        met: True if the SLO was met.
    """

    arrival: Arrival
    request: ServiceRequest
    decision: Decision
    fell_back: bool
    deciding: Spent
    switch: Spent
    costs: RequestCosts
    first_token_costs: RequestCosts
    full_model_costs: RequestCosts
    met: bool

    @property
    def read(self) -> int:
        """Number of prompt tokens after shortening."""
        return self.request.read(self.decision.prompt)


class ServingScenario(ServingCell):
    """The scenario selected by `service=NAME` with a trace; see `OfflineScenario`."""

    def find(self, progress: Progress) -> Findings:
        """Serve all requests."""
        device = EmulatedDevice(self.cell.machine())
        requests = [
            self._request(request_number, arrival) for request_number, arrival in enumerate(self.arrivals)
        ]
        longest_request = max(len(request.prompt) + request.answer for request in requests)
        lengths = (*PROMPT_LENGTHS, *([longest_request] if longest_request > PROMPT_LENGTHS[-1] else []))
        profile = profile_of(self.system, device, lengths)
        served = list(self._serve(device, profile, requests, progress))
        values, hits = service_figures(served) | self._memory(longest_request), None
        if self.answers_known:
            queries = [_query(request.arrival, request.decision) for request in served]
            answers = self.right(set(queries), progress)
            full_answers = self.right_in_full(set(queries), progress)
            hits = [answers[query] for query in queries]
            values |= accuracy_figures(served, hits, [full_answers[query] for query in queries])
            chances = (self.requests[a.app.source].chance(a.row) for a in self.arrivals)
            values["chance"] = 100.0 * mean(chances)
        details = {"memory": {"emulated_dram": round(self.system.resident_bytes(longest_request))}}
        spread = spreads(values, len(served))
        return Findings(values, spread, list(rounds(served, hits)), provenance=details)

    def _memory(self, longest: int) -> dict[str, Scalar]:
        """Peak memory in bytes, and extra memory as shares of the full model's weights."""
        system, full_bytes = self.system, self.system.full.model_bytes
        return {
            "memory": system.resident_bytes(longest),
            "adapter_share": system.adapter_bytes / full_bytes,
            "extra_memory": system.weights / full_bytes - 1.0,
        }

    def _request(self, request_number: int, arrival: Arrival) -> ServiceRequest:
        app, answer, name = (
            arrival.app,
            self.trace.answer,
            f"{arrival.app.name}/{arrival.row}/{request_number}",
        )
        shares = {objective: getattr(app, objective) for objective in ("ttft", "tpot", "time", "energy")}
        slo = LatencySlo(**shares) if any(share is not None for share in shares.values()) else DEFAULT_SLO
        if app.tokens:
            return ServiceRequest(name, (0,) * app.tokens, answer, slo)
        requests, granule = self.requests[app.source], self.service.granule
        return ServiceRequest(name, requests.read(arrival.row), answer, slo, requests.spare, granule)

    def _serve(
        self, device: Device, profile: DeviceProfile, requests: Sequence[ServiceRequest], progress: Progress
    ) -> Iterator[ServedRequest]:
        """Decide and cost the requests in order, since the cost of a switch depends on the previous level."""
        rule, seed = self._rule(profile), self.config["seed"]
        guard = SloGuard(self._decider(rule, requests, progress), rule, self.service.fallback, seed)
        op_seconds: dict[tuple[Op, ...], Spent] = {}
        level: float | None = None
        for request_number, (arrival, request) in enumerate(zip(self.arrivals, requests, strict=True)):
            if not request_number % 20:
                progress("deciding", request_number, len(requests))
            ops = self._deciding(guard.decider, request, device.main)
            decision_cost = op_seconds.get(ops) or op_seconds.setdefault(
                ops, device.play(run_ops(device, ops))
            )
            decision, fell_back = self._decide(guard, request, level, decision_cost)
            tokens = request.read(decision.prompt)
            costs, first_token_costs = (
                profile.costs(decision.model, tokens, answer, level, decision_cost)
                for answer in (request.answer, 1)
            )
            full_model_costs = profile.whole(len(request.prompt), request.answer)
            switch = NO_COST if decision.model == level else profile.levels[decision.model].switch
            level, met = decision.model, request.objective.met(costs, full_model_costs)
            yield ServedRequest(
                arrival,
                request,
                decision,
                fell_back,
                decision_cost,
                switch,
                costs,
                first_token_costs,
                full_model_costs,
                met,
            )

    def _deciding(self, decider: Decider, request: ServiceRequest, on: str) -> tuple[Op, ...]:
        """Ops that run before the prefill: decider and scorer."""
        scorer = self._scorer
        return (*decider.ops(request, on), *(scorer.ops(request.prompt, on) if scorer else ()))

    def _decide(
        self, guard: SloGuard, request: ServiceRequest, loaded_level: float | None, decision_cost: Spent
    ) -> tuple[Decision, bool]:
        """The decision and whether it is a fallback; the smallest levels if no decision meets the SLO."""
        if self.service.decider == "fixed":
            return guard.decider.decide(request, ()), False
        try:
            decision, fell_back = guard.decide(request, loaded_level, decision_cost)
        except Infeasible:
            return Decision(min(self.system.prompts), min(self.system.levels)), True
        return decision, fell_back

    def _rule(self, profile: DeviceProfile) -> Rule:
        if self.service.check == "nominal":
            return Nominal(self.system.prompts, tuple(sorted(self.system.levels)))
        return ByProfile(profile, self.system.prompts)

    def _decider(self, rule: Rule, requests: Sequence[ServiceRequest], progress: Progress) -> Decider:
        service, seed = self.service, self.config["seed"]
        if service.decider == "decision_head":
            return tiny_language_model().decision_head(self.target.tokenizer, self._model.stored)
        if service.decider == "oracle":
            return Oracle(self._table(rule, requests, progress), seed)
        if service.decider == "fixed":
            return Fixed(Decision(service.fixed_prompt, service.fixed_model))
        return Uniform(seed) if service.decider == "random" else Largest()

    def _table(
        self, rule: Rule, requests: Sequence[ServiceRequest], progress: Progress
    ) -> dict[str, list[Decision]]:
        """By request, the decisions that answer it correctly among those that can meet its SLO."""
        feasible = {
            # Pass each level as the present one: without switching costs no feasible decision is left out.
            (request.id, decision): _query(arrival, decision)
            for arrival, request in zip(self.arrivals, requests, strict=True)
            for level in self.system.levels
            for decision in rule.feasible(request, level)
            if decision.model == level
        }
        answers = self.right(set(feasible.values()), progress)
        right_decisions: dict[str, list[Decision]] = {request.id: [] for request in requests}
        for (name, decision), query in feasible.items():
            if answers[query]:
                right_decisions[name].append(decision)
        return right_decisions

    @cached_property
    def _chooser(self) -> Scorer | None:
        """The scorer that chooses the tokens to keep."""
        if self.service.scorer == "none":
            return None
        return AnyToken(self.config["seed"]) if self.service.scorer == "random" else score_head(self.target)

    @cached_property
    def _scorer(self) -> Scorer | None:
        """The scorer with its cost; with a decision head, shared bottom layers are not charged twice."""
        chooser, service = self._chooser, self.service
        if chooser and service.scorer == "llmlingua2":
            return StandIn(chooser, self.target.config.stored)
        if service.scorer == "score_head" and service.decider == "decision_head":
            return score_head(self.target, shares_bottom=True)
        return chooser

    def right(self, queries: Collection[Query], progress: Progress) -> dict[Query, bool]:
        """Whether each query is answered correctly by the model of its level."""
        models = self.system.models
        answers: dict[Query, bool] = {}
        for name in sorted({models.get(query.decision.model) for query in queries}, key=str):
            model_queries = [query for query in queries if models.get(query.decision.model) == name]
            answers |= self._answers(name, self.corpus).right(model_queries, progress)
        return answers

    def right_in_full(self, queries: Collection[Query], progress: Progress) -> dict[Query, bool]:
        """Whether the full target answers the example of each query correctly."""
        full_queries = {query: query._replace(decision=Decision(1.0, 1.0)) for query in queries}
        answers = self._answers(None, Corpus((), "none")).right(set(full_queries.values()), progress)
        return {query: answers[full_query] for query, full_query in full_queries.items()}

    def _answers(self, name: str | None, corpus: Corpus) -> AnswerCache:
        """The answer cache of a family member, or of the target if `name` is None."""
        model = self.members[name] if name else self.target
        folder = model.folder
        assert folder is not None
        return AnswerCache(
            model.digest,
            lambda: _weights(folder, model.config.rounded),
            self.service.compression,
            corpus,
            self.requests_of(model) if name else self.requests,
            Shortening(self._chooser, self.service.granule),
            memory_root(),
        )


def _query(arrival: Arrival, decision: Decision) -> Query:
    return Query(arrival.app.source, arrival.row, decision)


@lru_cache(maxsize=1)
def _weights(folder: Path, rounded_bits: int | None) -> Decoder:
    """Load a checkpoint, dense in fp32 and optionally rounded; cached for all levels of a cell."""
    return round_to_nearest.load(folder, rounded_bits)


@dataclass(frozen=True)
class StandIn(Scorer):
    """LLMLingua-2 without its weights: the trained score head scores, the cost is that of its encoder."""

    chooses: Scorer
    stored: Precision

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`."""
        return self.chooses.scores(tokens)

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """See `Scorer`."""
        return llmlingua2.scoring(len(tokens), on, self.stored)


@dataclass(frozen=True)
class Shortening:
    """How prompts are shortened.

    Attributes:
        scorer: token scorer, identified by its class and settings; None if prompts are not shortened.
        granule: see `slo.kept_tokens`.
    """

    scorer: Scorer | None
    granule: int = 1

    @property
    def identity(self) -> list[str]:
        """The values that decide its outcome, for the cache key."""
        if self.scorer is None:
            return ["none"]
        settings = repr(self.scorer) if is_dataclass(self.scorer) else ""
        return [str(self.granule), type(self.scorer).__qualname__, settings]


ANSWER_TABLE = "correct"
"""Table of the answer cache."""


class AnswerStore:
    """Correctness by column (model level, dataset, prompt level) and example, in a file; see `RowFile`."""

    def __init__(self, path: Path) -> None:
        self._file = RowFile(path, (ANSWER_TABLE,))

    def get(self, column: str, rows: Iterable[int]) -> dict[int, bool]:
        """The stored ones among some examples of a column."""
        stored_answers = {row: self._file.get(ANSWER_TABLE, _answer_key(column, row)) for row in rows}
        return {row: answer == b"\1" for row, answer in stored_answers.items() if answer is not None}

    def put(self, column: str, answers: Mapping[int, bool]) -> None:
        """Store examples of a column."""
        rows = [(_answer_key(column, row), bytes([answer])) for row, answer in answers.items()]
        self._file.put(ANSWER_TABLE, rows, replace=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _answer_key(column: str, row: int) -> bytes:
    return bytes.fromhex(column) + row.to_bytes(4, "little")


@dataclass(frozen=True)
class AnswerCache:
    """Cached answers of one model at all levels of one compression.

    Attributes:
        digest: digest of the model's checkpoint.
        open: loads its weights, dense in fp32; called on a cache miss.
        compression: the compression of a level; None leaves the model unchanged.
        corpus: texts on which the compression is calibrated.
        requests: requests by dataset.
        shortening: how prompts are shortened.
        root: the cache folder.
    """

    digest: str
    open: Callable[[], Decoder]
    compression: Callable[[float], Compression | None]
    corpus: Corpus
    requests: Mapping[str, DatasetRequests]
    shortening: Shortening
    root: Path

    def right(self, queries: Collection[Query], progress: Progress) -> dict[Query, bool]:
        """Whether each query is answered correctly; uncached ones are computed, level by level."""
        verdicts: dict[Query, bool] = {}
        columns: dict[float, dict[tuple[str, float], list[int]]] = defaultdict(lambda: defaultdict(list))
        for dataset, row, decision in sorted(set(queries)):
            columns[decision.model][dataset, decision.prompt].append(row)
        with closing(AnswerStore(self.root / "answers" / f"{self.digest[:24]}.sqlite")) as store:
            for model, datasets in sorted(columns.items()):
                reader: Reader | None = None
                for (dataset, prompt), rows in datasets.items():
                    key = self._key(dataset, Decision(prompt, model))
                    answers = store.get(key, rows)
                    missing_rows = [row for row in rows if row not in answers]
                    if missing_rows:
                        progress("answering", len(verdicts), len(queries))
                        reader = reader or self._reader(model)
                        new_answers = self._column(reader, dataset, prompt, missing_rows)
                        store.put(key, new_answers)
                        answers |= new_answers
                    verdicts |= {Query(dataset, row, Decision(prompt, model)): answers[row] for row in rows}
        progress("answering", len(verdicts), len(queries))
        return verdicts

    def _key(self, dataset: str, decision: Decision) -> str:
        requests, compression = self.requests[dataset], self._compression(decision.model)
        level: list[object] = ["whole"]
        if compression is not None:
            corpus = [self.corpus.digest] if compression.calibrated else []
            kind, settings = type(compression), asdict(compression)  # type: ignore[call-overload]
            level = [kind.__qualname__, version_of(kind), settings, files_read(compression), *corpus]
        shortening = self.shortening.identity if decision.prompt < 1.0 else []
        examples: list[object] = [dataset_asked(asdict(requests.dataset)), requests.rows.digest]
        if requests.concise < 1.0:
            examples += [requests.concise, *Shortening(requests.scorer).identity]
        prompts = [decision.prompt, *shortening, requests.spare]
        return content_hash([self.digest, level, examples, prompts, WEIGHT_VERSIONS])

    def _compression(self, model: float) -> Compression | None:
        return None if model == 1.0 else self.compression(model)

    def _reader(self, model: float) -> Reader:
        """The model of a level; the last `MOST_DECODERS` models are cached, since compressing takes long."""
        compression = self._compression(model)
        key = (self.digest, compression, self.corpus.digest)
        if key not in _compressed_decoders:
            if len(_compressed_decoders) == MOST_DECODERS:
                del _compressed_decoders[next(iter(_compressed_decoders))]
            _compressed_decoders[key] = self._made(compression)
        return Reader(_compressed_decoders[key])

    def _made(self, compression: Compression | None) -> Decoder:
        decoder = self.open()
        if compression is None:
            return decoder
        corpus = (
            [torch.tensor(sequence) for sequence in self.corpus.sequences] if compression.calibrated else []
        )
        return compression.compress(decoder, corpus).decoder

    def _column(self, reader: Reader, dataset: str, prompt: float, rows: Iterable[int]) -> dict[int, bool]:
        """Score examples of one column, sorted so that common prefixes follow each other."""
        requests = self.requests[dataset]
        shorten = self._shortener(requests, prompt)
        pairs = {
            row: [(shorten(c.context), c.token_ids) for c in requests.prompt(row).continuations]
            for row in rows
        }
        ordered_rows = sorted(pairs, key=lambda row: pairs[row])
        return {row: requests.is_right(row, reader.score(pairs[row])) for row in ordered_rows}

    def _shortener(self, requests: DatasetRequests, level: float) -> Callable[[Tokens], Tokens]:
        """The function that shortens a context to a level; the common prefix is scored once."""
        if level == 1.0:
            return lambda context: context
        scorer, spare = self.shortening.scorer, requests.spare
        if scorer is None:
            raise InputError(
                f"prompts are to be shortened to {level:g}, and nothing scores their tokens; choose a "
                "service with a scorer, or whole prompts"
            )
        scores = scorer.scores(requests.read(0)[:spare]) if spare else []

        def shorten(context: Tokens) -> Tokens:
            count = kept_tokens(len(context), level, spare, self.shortening.granule)
            return shorten_prompt(context, count, scores, spare)

        return shorten


# Figures


def service_figures(served: Sequence[ServedRequest]) -> dict[str, Scalar]:
    """Latency, SLO and switching figures over all requests.

    TPOTs are over answers of two tokens or more, `None` without any. Speedups and most shares are ratios of
    sums, so that long requests weigh more. `switch_seconds` is the
    mean over switches that took time, `switch_seconds_max` the longest.
    """
    switches = [s.switch.seconds for s in served if s.switch.seconds]
    ttft_sum = sum(s.costs.ttft for s in served)
    tpots = [s.costs.tpot for s in served if s.costs.tpot is not None]
    full_tpots = [s.full_model_costs.tpot for s in served if s.full_model_costs.tpot is not None]
    energies = [s.costs.energy for s in served if s.costs.energy is not None]
    return {
        "requests": len(served),
        "met": 100.0 * mean(s.met for s in served),
        "unmet": sum(not s.met for s in served),
        "fell_back": 100.0 * mean(s.fell_back for s in served),
        "ttft": mean(s.costs.ttft for s in served),
        "tpot": mean(tpots) if tpots else None,
        "time": mean(s.costs.time for s in served),
        "energy": mean(energies) if len(energies) == len(served) else None,
        **_as_generated(served),
        "full_ttft": mean(s.full_model_costs.ttft for s in served),
        "full_tpot": mean(full_tpots) if full_tpots else None,
        "ttft_speedup": sum(s.full_model_costs.ttft for s in served) / ttft_sum,
        "tpot_speedup": sum(full_tpots) / sum(tpots) if tpots else None,
        "prompt_level": mean(s.decision.prompt for s in served),
        "model_level": mean(s.decision.model for s in served),
        "prompt_tokens": mean(len(s.request.prompt) for s in served),
        "read_share": sum(s.read for s in served) / sum(len(s.request.prompt) for s in served),
        "switches": len(switches),
        "switch_seconds": mean(switches) if switches else 0.0,
        "switch_seconds_max": max(switches, default=0.0),
        "switch_share": sum(switches) / ttft_sum,
        "deciding_seconds": mean(s.deciding.seconds for s in served),
        "deciding_share": sum(s.deciding.seconds for s in served) / ttft_sum,
        "deciding_share_of_full": mean(s.deciding.seconds / s.full_model_costs.ttft for s in served),
        "decisions": len({s.decision for s in served}),
    }


def _as_generated(served: Sequence[ServedRequest]) -> dict[str, Scalar]:
    """The figures of generation that requests have too, under its names, for tables that have both."""
    token_count = sum(s.request.answer - 1 for s in served)
    seconds = sum(s.costs.time - s.costs.ttft for s in served)
    prefill_joules = [s.first_token_costs.energy for s in served if s.first_token_costs.energy is not None]
    total_joules = [s.costs.energy for s in served if s.costs.energy is not None]
    is_complete = len(prefill_joules) == len(total_joules) == len(served)
    return {
        "prompts": len(served),
        "decode_tokens": token_count,
        "decode_seconds": seconds,
        "decode_tokens_per_s": token_count / seconds if token_count else None,
        "prefill_joules": sum(prefill_joules) if is_complete else None,
        "joules_per_token": (sum(total_joules) - sum(prefill_joules)) / token_count
        if is_complete and token_count
        else None,
    }


def accuracy_figures(
    served: Sequence[ServedRequest], hits: Sequence[bool], full_hits: Sequence[bool]
) -> dict[str, Scalar]:
    """Accuracy, compared with the full model's on the same examples.

    `accuracy` is over all requests; `accuracy_in_time` counts requests that missed their SLO as wrong.
    """
    from repro.metrics.base import score  # late: the metrics' library takes seconds to import

    correct = [int(hit) for hit in hits]
    values: dict[str, Scalar] = {**score(["accuracy"], {"correct": correct})}
    values["full_accuracy"] = 100.0 * mean(full_hits)
    values["accuracy_in_time"] = 100.0 * mean(a and b.met for a, b in zip(hits, served, strict=True))
    pairs = {"values": [100.0 * hit for hit in hits], "baseline_values": [100.0 * hit for hit in full_hits]}
    values |= score(["paired_difference"], pairs)
    apps = dict.fromkeys(s.arrival.app.name for s in served)
    if len(apps) > 1:
        for app in apps:
            app_hits = [a for a, b in zip(hits, served, strict=True) if b.arrival.app.name == app]
            values[f"accuracy_{app}"] = 100.0 * mean(app_hits)
    return values


def rounds(served: Sequence[ServedRequest], hits: Sequence[bool] | None) -> Iterator[Round]:
    """One mapping per request."""
    for request_number, entry in enumerate(served):
        yield {
            "id": entry.request.id,
            "seconds": entry.arrival.seconds,
            "prompt_level": entry.decision.prompt,
            "model_level": entry.decision.model,
            "prompt_tokens": len(entry.request.prompt),
            "read": entry.read,
            "ttft": entry.costs.ttft,
            "tpot": entry.costs.tpot,
            "full_ttft": entry.full_model_costs.ttft,
            "full_tpot": entry.full_model_costs.tpot,
            "deciding": entry.deciding.seconds,
            "switch": entry.switch.seconds,
            "met": int(entry.met),
            "fell_back": int(entry.fell_back),
            "right": None if hits is None else int(hits[request_number]),
        }
