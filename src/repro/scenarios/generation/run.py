"""Run a generation cell: answer its requests, measure them, and compare with the target's own text.

Must not know how a cell is checked and keyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from statistics import stdev
from typing import Any

from repro.device.emulated import Device
from repro.device.local import LocalDevice
from repro.device.trace import Trace
from repro.methods.base import Generation, Request, Serving
from repro.models.drafting.calibrated_draft import MatchedNetwork
from repro.models.drafting.calibrated_heads import MatchedHeads
from repro.models.drafting.head_ranks import Calibration
from repro.models.forward.network import Network
from repro.models.runtime.model import Model
from repro.models.runtime.session import Session
from repro.models.runtime.sharded import ShardedModel, placed
from repro.records.build_cache import memory_root
from repro.records.record import Round, Scalar, Spread
from repro.scenarios.base import Progress
from repro.scenarios.generation import answers, draft_calibration, fidelity, figures, task_scores
from repro.scenarios.generation.draft_calibration import Matched
from repro.scenarios.generation.heads_fit import HeadMatch
from repro.scenarios.generation.scenario import GenerationScenario, last


@contextmanager
def _network(cell: GenerationScenario, model: Model | ShardedModel) -> Iterator[Network]:
    """Open a model's network, with its logit cache where caching is allowed."""
    if not (cell.config["memo"] and cell.emulated and cell.sampling.greedy and model.folder):
        yield model.network()
        return
    with closing(model.memo(memory_root())) as memo:
        yield model.network(memo)


def calibrated(cell: GenerationScenario, progress: Progress) -> Matched | HeadMatch | None:
    """Calibrate the draft to the published value; an agreement needs calibration prompts."""
    if cell.match is None or isinstance(cell.match, HeadMatch):
        return cell.match
    models, count = {"target": cell.target, "draft": cell.draft}, len(cell.calibration)
    with ExitStack() as opened:
        networks = {role: opened.enter_context(_network(cell, model)) for role, model in models.items()}
        share = draft_calibration.native(
            models, networks, cell.calibration, lambda done: progress("matching agreement", done, count)
        )
    return draft_calibration.match(cell.match, share)


@contextmanager
def _matched_network(
    cell: GenerationScenario, model: Model | ShardedModel, matched: Matched | HeadMatch | None
) -> Iterator[Network]:
    """Open a model's network; a calibrated draft also opens its target as an oracle."""
    with _network(cell, model) as own:
        if matched is None:
            yield own
            return
        with _network(cell, cell.target) as oracle:
            if isinstance(matched, HeadMatch):
                yield MatchedHeads(own, oracle, matched.heads.accuracies, cell.config["seed"])
            else:
                yield MatchedNetwork(own, oracle, matched.probability, cell.config["seed"])


@contextmanager
def opened_sessions(
    cell: GenerationScenario, device: Device, matched: Matched | HeadMatch | None
) -> Iterator[dict[str, Session]]:
    """Open the cell's models on its device, by role, drafts before the target."""
    with ExitStack() as opened:
        sessions: dict[str, Session] = {}
        for role, place in last("target", cell.places):
            model = cell.model(role)
            if cell.emulated:
                # Of several drafts only the first is calibrated: the others have no measured agreement.
                brought = matched if role == "draft" else None
                there = placed(model, device, place)
                network = opened.enter_context(_matched_network(cell, there, brought))
                sessions[role] = there.session(role, device, place, network, cell.tokens)
                if isinstance(brought, HeadMatch):
                    sessions[role].calibration = Calibration(brought.trees.accuracies)
            else:
                sessions[role] = model.local_session(role, device, place, cell.tokens)
            opened.callback(sessions[role].engine.close)
            sessions[role].engine.reserve()
        yield sessions


def prepare(cell: GenerationScenario, device: Device, sessions: dict[str, Session]) -> Serving:
    """Load the models (emulated) or warm up with the first request (real device); prepare the method."""
    if cell.emulated:
        for session in sessions.values():
            with device.phase("load"):
                device.play(session.engine.load())
    else:
        with device.phase("warm-up"):
            start(sessions, cell.requests[0])
            device.play(cell.method.serve(cell.requests[0], device, sessions))
    return device.play(cell.method.prepare(device, sessions))


def serve(
    cell: GenerationScenario,
    device: Device,
    sessions: dict[str, Session],
    serving: Serving,
    progress: Progress,
) -> list[Generation]:
    """Answer all requests; a real device repeats them `repeats` times."""
    repeats = 1 if cell.emulated else cell.config["repeats"]
    out: list[Generation] = []
    for repeat in range(repeats):
        if repeat and isinstance(device, LocalDevice):
            device.rest(cell.config["cooldown"])
        for request in cell.requests:
            progress("answering", len(out), repeats * len(cell.requests))
            start(sessions, request)
            out.append(device.play(serving.serve(request, device, sessions)))
    progress("answering", len(out), len(out))
    return out


def start(sessions: Mapping[str, Session], request: Request) -> None:
    """Start a request in all sessions."""
    for session in sessions.values():
        session.start(request.prefix)


def timing(
    cell: GenerationScenario, generations: Sequence[Generation], trace: Trace
) -> tuple[dict[str, Scalar], dict[str, float]]:
    """Figures over all answers, and the standard deviation of the decode speed over repeats, if any."""
    values = figures.timing(generations, trace) | figures.calls(generations, "target" in cell.places)
    count = len(cell.requests)
    runs = [generations[i : i + count] for i in range(0, len(generations), count)]
    speeds = [figures.timing(run, trace)["decode_tokens_per_s"] for run in runs]
    numbers = [float(s) for s in speeds if s is not None]
    spread = {"decode_tokens_per_s": stdev(numbers)} if len(numbers) > 1 else {}
    return values, spread


@dataclass(frozen=True)
class Quality:
    """How good answers are: figures, standard errors or intervals, a line per answer, notes for readers."""

    values: Mapping[str, Scalar]
    uncertainty: Mapping[str, Spread] = field(default_factory=dict)
    answers: Sequence[Round] = ()
    notes: Sequence[str] = ()


def quality(cell: GenerationScenario, generations: Sequence[Generation], progress: Progress) -> Quality:
    """Compare the answers with the target's own, which a lossless method's must equal, and with the task."""
    own, values = _against_target(cell, generations, progress)
    if cell.cost_only:
        return Quality(values)
    decode = cell.target.tokenizer.decode
    texts = [decode(g.tokens) for g in generations]
    target_texts = None if own is None else [decode(tokens) for tokens in own]
    scored = task_scores.scored(cell.task_metrics, cell.dataset, cell.rows.rows, texts, target_texts)
    lines = answers.lines(generations, texts, own, target_texts, cell.rows.rows, cell.config["skip"])
    if scored.answers:
        lines = [{**line, **scores} for line, scores in zip(lines, scored.answers, strict=True)]
    cut = sum(map(answers.is_cut, generations)) if scored.answers else 0
    notes = (
        [f"{cut} of {len(lines)} answers were cut at max_tokens and are scored as they stand"] if cut else []
    )
    return Quality(values | dict(scored.values), scored.uncertainty, lines, notes)


def _against_target(
    cell: GenerationScenario, generations: Sequence[Generation], progress: Progress
) -> tuple[list[list[int]] | None, dict[str, Scalar]]:
    """The target's own answers, if its text is the greedy one, and the figures of the comparison."""
    target, metrics, verified = cell.target, cell.plain_metrics, "target" in cell.places
    text_of, count = str if cell.cost_only else target.tokenizer.decode, len(cell.requests)
    round_metric = cell.method.round_metric
    if not (cell.sampling.greedy and target.folder):
        return None, fidelity.scores(generations, None, text_of, metrics, verified, round_metric)
    with _network(cell, target) as network:
        own = fidelity.own_answers(
            network, cell.requests, lambda done: progress("the target's own text", done, count)
        )
        found = fidelity.scores(generations, own, text_of, metrics, verified, round_metric)
        if cell.method.lossless:
            dtype = target.config.dtype
            found["ties"] = fidelity.require_lossless(generations, own, network, dtype)
    return own, found


def found(
    cell: GenerationScenario,
    device: Device,
    values: dict[str, Scalar],
    matched: Matched | HeadMatch | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Provenance fields that are known only after the run."""
    fitted = cell.fitted_cells.union(matched.cells if matched else ())
    return {
        "fitted": tuple(sorted(fitted)),
        "matched": asdict(matched) if matched else None,
        "memory": {"emulated_dram": int(device.memory.peak)} if cell.emulated else {},
        "budget": int(device.memory.budget),
        "notes": (*_notes(cell, device, values), *notes),
    }


def _notes(cell: GenerationScenario, device: Device, values: dict[str, Scalar]) -> Iterator[str]:
    """Notes for readers of the figures."""
    for lacking, served in device.substituted.items():
        yield f"{lacking} ops ran on {served}"
    if isinstance(device, LocalDevice):
        yield f"flash reads are {device.flash_pacing}"
    if len(cell.places) > 1 and values.get("acceptance_length") == 1.0:
        yield "no draft token was ever accepted: an acceptance length of exactly 1 is rarely a draft's fault"
