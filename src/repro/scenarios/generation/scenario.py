"""What is done in a generation cell: a method answers prompts on a device, and its answers are measured.

Owns the order of the steps. Must not know how a cell is checked and keyed (`asked`), what is computed
beforehand (`prefixes`), or how figures are computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from math import inf
from statistics import fmean, stdev
from typing import Any

from repro.device.emulated import Device, EmulatedDevice
from repro.device.local import LocalDevice
from repro.device.op import GPU
from repro.device.timeline import Level, TimelinePart, chrome
from repro.device.trace import Trace
from repro.methods.base import Generation, Request, Serving
from repro.methods.speculative.drafting.calibrated_draft import MatchedHeads, MatchedNetwork
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.models.checkpoints.checkpoint import CheckpointTokenizer
from repro.models.checkpoints.generation_settings import unused_settings
from repro.models.checkpoints.validate import stored_notes
from repro.models.forward.network import Network
from repro.models.runtime.model import Model
from repro.models.runtime.recorded_passes import ROW_COUNTS, RecordedNetwork
from repro.models.runtime.session import Session
from repro.models.runtime.side_network import SideNetwork
from repro.records.record import Scalar
from repro.scenarios import laws
from repro.scenarios.base import Findings, Progress
from repro.scenarios.generation import figures, trace_laws
from repro.scenarios.generation.answers import quality
from repro.scenarios.generation.asked import GenerationCell, last
from repro.scenarios.generation.draft_calibration import Calibrated, HeadMatch, MatchedWeights
from repro.scenarios.generation.prefixes import (
    OpenNetwork,
    agreement,
    network_of,
    outputs_of,
    prepare_rows,
    remembers,
)

MOST_OPS = 60_000
"""Ops of a timeline, unless its first request alone has more: a viewer and a disk hold so many with ease."""


class GenerationScenario(GenerationCell):
    """The scenario selected by `method=NAME`; see `Scenario`."""

    def find(self, progress: Progress) -> Findings:
        """See `Scenario`."""
        prepared = prepare_rows(self, progress)
        device = self.open_device()
        with closing(device), opened_sessions(self, device, prepared.calibrated) as sessions:
            serving = prepare(self, device, sessions)
            answers = serve(self, device, sessions, serving, progress)
            loads = [session.engine.loads for session in sessions.values()]
            forms = [*pass_forms(device, sessions)]
        first_answers, trace = answers[: len(self.requests)], device.trace
        answer_quality = quality(self, first_answers, prepared.references)
        values = figures.timing(answers, trace) | figures.calls(answers, "target" in self.places)
        values |= {name: value for loading in loads if loading for name, value in loading.figures.items()}
        values |= dict(serving.figures) | (self.compressed.figures if self.compressed else {})
        if isinstance(prepared.calibrated, MatchedWeights) and prepared.references is not None:
            values |= prepared.calibrated.figures(agreement(self, self.requests, prepared.references))
        values |= figures.drafting(answers) | figures.passes(answers, sessions)
        values |= figures.projecting(answers, trace) | dict(answer_quality.values)
        if isinstance(device, EmulatedDevice):
            laws.require(trace_laws.broken_laws(answers, sessions, device, values))
        costs = figures.by_answer(first_answers[: len(answer_quality.lines)], sessions, trace)
        return Findings(
            values,
            {**_spread(self, answers, device), **answer_quality.uncertainty},
            figures.round_rows(answers),
            _timeline(self, device, answers, sessions),
            _provenance(self, device, values, prepared.calibrated, [*answer_quality.notes, *forms]),
            [{**line, **cost} for line, cost in zip(answer_quality.lines, costs, strict=True)],
        )


@contextmanager
def _matched_network(
    cell: GenerationCell,
    model: Model,
    role: str,
    matched: Calibrated | None,
    network: OpenNetwork,
) -> Iterator[Network]:
    """Open a model's network; a calibrated draft also opens its target as an oracle."""
    with network(cell, model, role) as draft_network:
        if matched is None:
            yield draft_network
            return
        seed = cell.config["seed"]
        with network(cell, cell.target, "target") as oracle:
            if isinstance(matched, HeadMatch):
                yield MatchedHeads(draft_network, oracle, matched.heads.accuracies, seed)
            else:
                yield MatchedNetwork(draft_network, oracle, matched.probability, seed, matched.temperature)


@contextmanager
def opened_sessions(
    cell: GenerationCell,
    device: Device,
    matched: Calibrated | None,
    network: OpenNetwork = network_of,
) -> Iterator[dict[str, Session]]:
    """Open the cell's models on its device, by role, drafts before the target."""
    with ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for role, place in last("target", cell.places):
            model = cell.model(role)
            if cell.emulated:
                # Of several drafts only the first is calibrated: the others have no measured agreement.
                match = matched if role == "draft" else None
                variant = cell.method.variant(role, model, device)
                model_network = stack.enter_context(_matched_network(cell, variant, role, match, network))
                sessions[role] = variant.session(role, device, place, model_network, cell.tokens(role))
                if role == "draft" and cell.trees:
                    sessions[role].beside = Calibration(cell.trees.accuracies)
                side = sessions[role].beside
                if network is network_of and remembers(cell) and isinstance(side, SideNetwork):
                    side.remember(stack.enter_context(outputs_of(model, side)))
            else:
                sessions[role] = model.local_session(role, device, place, cell.tokens(role))
            stack.callback(sessions[role].engine.close)
            sessions[role].engine.reserve()
        yield sessions


def load(device: Device, sessions: Mapping[str, Session]) -> None:
    """Load the models, emulated."""
    for session in sessions.values():
        with device.phase("load"):
            device.play(session.engine.load())


def prepare(cell: GenerationCell, device: Device, sessions: dict[str, Session]) -> Serving:
    """Load the models (emulated) or warm up with the first request (real device); prepare the method."""
    if cell.emulated:
        load(device, sessions)
    else:
        with device.phase("warm-up"):
            start(sessions, cell.requests[0])
            device.play(cell.method.serve(cell.requests[0], device, sessions))
    return device.play(cell.method.prepare(device, sessions))


def serve(
    cell: GenerationCell,
    device: Device,
    sessions: dict[str, Session],
    serving: Serving,
    progress: Progress,
) -> list[Generation]:
    """Answer all requests; a real device repeats them `repeats` times."""
    repeats = 1 if cell.emulated else cell.config["repeats"]
    answers: list[Generation] = []
    for repeat in range(repeats):
        if repeat and isinstance(device, LocalDevice):
            device.rest(cell.config["cooldown"])
        for request in cell.requests:
            progress("answering", len(answers), repeats * len(cell.requests))
            start(sessions, request)
            answers.append(device.play(serving.serve(request, device, sessions)))
    progress("answering", len(answers), len(answers))
    return answers


def start(sessions: Mapping[str, Session], request: Request) -> None:
    """Start a request in all sessions."""
    for session in sessions.values():
        session.start(request.prefix)


def _spread(cell: GenerationCell, answers: Sequence[Generation], device: Device) -> dict[str, float]:
    """The standard deviation of the decode speed over a real device's repeats, if there are several."""
    count = len(cell.requests)
    repeats = [answers[i : i + count] for i in range(0, len(answers), count)]
    speeds = [figures.timing(repeat, device.trace)["decode_tokens_per_s"] for repeat in repeats]
    numbers = [float(speed) for speed in speeds if speed is not None]
    return {"decode_tokens_per_s": stdev(numbers)} if len(numbers) > 1 else {}


def _timeline(
    cell: GenerationCell, device: Device, answers: Sequence[Generation], sessions: Mapping[str, Session]
) -> partial[str]:
    """What makes the run's Chrome trace."""
    end_seconds, count = shown_until(answers, device.trace)
    name = f"{cell.labels['method']} on {device.name}"
    if count < len(answers):
        name += f", the first {count} of {len(answers)} requests"
    timeline_items = [*timeline_parts(answers, sessions)]
    return partial(chrome, device.trace, name, timeline_items, device.memory.history, end_seconds)


def shown_until(generations: Sequence[Generation], trace: Trace, limit: int = MOST_OPS) -> tuple[float, int]:
    """When a timeline ends, and how many requests it shows: as many as `most` ops allow, at least one."""
    starts = sorted(span.start for span in trace)
    for done_count, generation in enumerate(generations[1:], 1):
        if bisect_left(starts, generation.ended) > limit:
            return generations[done_count - 1].ended, done_count
    return inf, len(generations)


def timeline_parts(
    generations: Sequence[Generation], sessions: Mapping[str, Session]
) -> Iterator[TimelinePart]:
    """Requests with their rounds, then the passes of each model, those of the preparation included."""
    for answer in generations:
        args: dict[str, object] = {"prompt_tokens": len(answer.request.prompt), "tokens": len(answer.tokens)}
        yield TimelinePart(Level.REQUEST, f"request {answer.request.id}", answer.arrived, answer.ended, args)
        for i, round_ in enumerate(answer.rounds):
            round_args: dict[str, object] = {
                "drafted": round_.drafted,
                "accepted": round_.accepted,
                "emitted": round_.emitted,
                "rows": round_.rows,
            }
            if round_.reason:
                round_args["stopped"] = round_.reason
            yield TimelinePart(Level.ROUND, f"round {i}", round_.start, round_.end, round_args)
    for role, session in sessions.items():
        for network_pass in session.passes:
            args = {"rows": network_pass.rows, "loading_ms": round(network_pass.loading * 1e3, 3)}
            yield TimelinePart(Level.PASS, f"{role} pass", network_pass.start, network_pass.end, args, role)


def _provenance(
    cell: GenerationCell,
    device: Device,
    values: Mapping[str, Scalar],
    matched: Calibrated | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Provenance fields that are known only after the run."""
    fitted = cell.fitted_cells.union(matched.cells if matched else ())
    layers = {role: cell.model(role).model_cost.layer_bytes for role in cell.places}
    return {
        "fitted": tuple(sorted(fitted)),
        "matched": asdict(matched) if matched else None,
        "memory": {"emulated_dram": int(device.memory.peak)} if cell.emulated else {},
        "budget": int(device.memory.budget),
        "extrapolated": cell.cell.extrapolations(device.trace, layers) if cell.emulated else (),
        "ends": None if cell.cost_only else _ends(cell.target.tokenizer),
        "notes": (*_notes(cell, device, values), *notes),
    }


def pass_forms(device: Device, sessions: Mapping[str, Session]) -> Iterator[str]:
    """How each model's passes run on a GPU of this machine."""
    if not isinstance(device, LocalDevice) or device.main != GPU:
        return
    for role, session in sessions.items():
        if isinstance(session.engine.network, RecordedNetwork):
            yield f"passes of the {role} of up to {ROW_COUNTS[-1]} rows were recorded and replayed"
        else:
            yield f"passes of the {role} were launched kernel by kernel"


def _ends(tokenizer: CheckpointTokenizer) -> dict[str, str]:
    """The ids that end an answer, each with its token and what names it."""
    tokens = {
        token_id: token for token, token_id in tokenizer.vocabulary.items() if token_id in tokenizer.ends
    }
    return {str(end): f"{tokens.get(end)} ({', '.join(sources)})" for end, sources in tokenizer.ends.items()}


def _notes(cell: GenerationCell, device: Device, values: Mapping[str, Scalar]) -> Iterator[str]:
    """Notes for readers of the figures."""
    yield from stored_notes(*(cell.model(role).folder for role in cell.places))
    if cell.target.folder and (settings := unused_settings(cell.target.folder)):
        name = cell.target.config.name
        yield f"{name}: its {settings}, which transformers' generate would use and this run does not"
    limit, lengths = cell.config["prompt_tokens"], [len(request.prompt) for request in cell.requests]
    if limit and (short_count := sum(length < limit for length in lengths)):
        yield (
            f"{short_count} of {len(lengths)} prompts are shorter than prompt_tokens={limit}, which only "
            f"cuts: they have {min(lengths)} to {max(lengths)} tokens, {round(fmean(lengths))} on average"
        )
    if cell.cell.stand_in:
        yield cell.cell.stand_in
    for absent, substitute in device.substituted.items():
        has_no_kernel = absent in device.resources
        start = f"{absent} has no kernel for the format of the weights; its" if has_no_kernel else absent
        yield f"{start} ops ran on {substitute}"
    if isinstance(device, LocalDevice):
        yield f"flash reads are {device.flash_pacing}"
        if device.meter.counters or device.machine.idle_watts is None:
            yield device.meter.sentence
    width = values.get("verification_width")
    has_drafts = isinstance(width, (int, float)) and round(width) > 1  # of one row nothing can be accepted
    if has_drafts and values.get("acceptance_length") == 1.0:
        yield "no draft token was ever accepted: an acceptance length of exactly 1 is rarely a draft's fault"
