"""Run a generation cell: answer its requests, measure them, and compare with the target's own text.

Must not know how a cell is checked and keyed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import Any

from repro.device.emulated import Device
from repro.device.local import LocalDevice
from repro.device.op import GPU
from repro.device.trace import Trace
from repro.methods.base import Generation, Request, Serving
from repro.metrics.text import rouge_by_prompt
from repro.models.checkpoints.checkpoint import CheckpointTokenizer
from repro.models.checkpoints.generation_settings import unused
from repro.models.checkpoints.validate import stored_notes
from repro.models.drafting.calibrated_draft import MatchedNetwork
from repro.models.drafting.calibrated_heads import MatchedHeads
from repro.models.drafting.head_ranks import Calibration
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Network
from repro.models.forward.side_by_side import GreedyText, Told
from repro.models.observations import own_text, transfer
from repro.models.runtime.model import Model
from repro.models.runtime.recorded_passes import ROWS, RecordedNetwork
from repro.models.runtime.session import Session
from repro.models.runtime.sharded import ShardedModel, placed
from repro.models.tokens.prefix import Prefix
from repro.records.build_cache import forgetting, memory_root
from repro.records.effort import count
from repro.records.record import Round, Scalar, Spread
from repro.scenarios.base import Progress
from repro.scenarios.generation import answers, draft_calibration, fidelity, figures, task_scores
from repro.scenarios.generation.draft_calibration import Agreement, Matched, MatchedWeights
from repro.scenarios.generation.heads_fit import HeadMatch
from repro.scenarios.generation.scenario import GenerationScenario, last


@contextmanager
def _network(cell: GenerationScenario, model: Model | ShardedModel, role: str) -> Iterator[Network]:
    """Open a model's network, with its logit cache where caching is allowed."""
    if not (remembers(cell) and model.folder):
        yield model.network()
        return
    with closing(model.memo(memory_root())) as memo:
        transfer.fill(memo, model.observed())
        yield model.network(memo, cell.method.ranks(role))


OpenNetwork = Callable[[GenerationScenario, Model | ShardedModel, str], AbstractContextManager[Network]]
"""Opens the network of a model in a role."""


def remembers(cell: GenerationScenario) -> bool:
    """Whether the cell looks rows up that were computed before."""
    return bool(cell.config["memo"]) and cell.emulated and cell.sampling.greedy


def own_texts(cell: GenerationScenario, progress: Progress) -> list[GreedyText] | None:
    """The target's own text after each prompt; None if answers are sampled or nothing computes.

    The rows that it was chosen from are what a replayed target says along it.
    """
    if not (cell.sampling.greedy and cell.target.folder):
        return None
    return _texts_after(
        cell, cell.requests, partial(progress, "computing the target's text, which no pack has,")
    )


def _texts_after(
    cell: GenerationScenario, requests: Sequence[Request], progress: Callable[[int, int], None]
) -> list[GreedyText]:
    target, prompts = cell.target, [request.prefix for request in requests]
    tokens = int(cell.config["max_tokens"]) + own_text.BEYOND
    total = tokens * len(prompts)
    with ExitStack() as opened:
        root = memory_root() if cell.config["memo"] else opened.enter_context(forgetting())
        store = opened.enter_context(closing(target.texts(root)))
        transfer.fill_texts(store, target.observed())
        memo = opened.enter_context(closing(target.memo(root))) if remembers(cell) else None

        def compute(prompts: Sequence[Prefix], tokens: int, told: Told) -> list[GreedyText]:
            found = target.compute_texts(prompts, tokens, told)
            if memo and not target.encoder_decoder:
                for text in found:
                    memo.put(text.contexts(), text.rows)
                    count(computed=memo.counted(text.contexts()))
            return found

        def told(done: int) -> None:
            progress(done, total)

        return own_text.own_texts(store, compute, prompts, tokens, told)


@contextmanager
def known_exits(target: Model) -> Iterator[LogitCache]:
    """Open the cache of the scores of a target's early-exit predictor."""
    with closing(target.memo(memory_root(), target.exits)) as memo:
        transfer.fill(memo, target.observed(target.exits))
        yield memo


Calibrated = Matched | MatchedWeights | HeadMatch
"""What a draft was brought to."""


def calibrated(cell: GenerationScenario, progress: Progress) -> Calibrated | None:
    """Calibrate the draft to the value asked for; an agreement needs calibration prompts."""
    if cell.match is None or isinstance(cell.match, HeadMatch):
        return cell.match
    requests, count = cell.calibration, len(cell.calibration)
    texts = _texts_after(cell, requests, partial(progress, "the target's text to calibrate on"))

    def told(done: int) -> None:
        progress("matching agreement", done, count)

    if not cell.interpolates:
        confidences = cell.config["draft_calibration"] != draft_calibration.CHOICES
        return draft_calibration.match(cell.match, agreement(cell, requests, texts, told), confidences)

    def agreement_at(share: float) -> Agreement:
        cell.take_share(share)
        return agreement(cell, requests, texts, told)

    matched = draft_calibration.match_weights(cell.match, cell.config["seed"], agreement_at)
    cell.take_share(matched.share)
    return matched


def agreement(
    cell: GenerationScenario,
    requests: Sequence[Request],
    texts: Sequence[GreedyText],
    told: Callable[[int], None] = lambda done: None,
) -> Agreement:
    """How often the draft as it is predicts the tokens of the target's answers to requests."""
    said = [(text.prompt, own) for text, own in zip(texts, _own_answers(texts, requests), strict=True)]
    with _network(cell, cell.draft, "draft") as draft:
        return draft_calibration.native(said, draft, told)


def shards_ahead(cell: GenerationScenario, device: Device, progress: Progress) -> None:
    """Compute what a target in shards says along its own text, all prompts side by side, and cache it."""
    place = cell.places.get("target")
    if place is None or not cell.target.folder:
        return
    if not isinstance(model := placed(cell.target, device, place), ShardedModel):
        return
    tokens, done = int(cell.config["max_tokens"]), 0
    total = tokens * len(cell.requests)
    with closing(model.memo(memory_root())) as memo:
        prompts = [request.prefix for request in cell.requests]
        for group in own_text.groups([prompt for prompt in prompts if memo.get(prompt) is None]):
            told = own_text.shifted(
                lambda each: progress("computing texts in shards", each, total), done, len(group)
            )
            for text in model.compute_texts(group, tokens, told):
                memo.put(text.contexts(), text.rows)
                count(computed=memo.counted(text.contexts()))
            done += tokens * len(group)


@contextmanager
def _matched_network(
    cell: GenerationScenario,
    model: Model | ShardedModel,
    role: str,
    matched: Calibrated | None,
    network: OpenNetwork,
) -> Iterator[Network]:
    """Open a model's network; a calibrated draft also opens its target as an oracle."""
    with network(cell, model, role) as own:
        if matched is None:
            yield own
            return
        with network(cell, cell.target, "target") as oracle:
            if isinstance(matched, HeadMatch):
                yield MatchedHeads(own, oracle, matched.heads.accuracies, cell.config["seed"])
            else:
                seed = cell.config["seed"]
                yield MatchedNetwork(own, oracle, matched.probability, seed, matched.temperature)


@contextmanager
def opened_sessions(
    cell: GenerationScenario,
    device: Device,
    matched: Calibrated | None,
    network: OpenNetwork = _network,
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
                made = opened.enter_context(_matched_network(cell, there, role, brought, network))
                sessions[role] = there.session(role, device, place, made, cell.tokens(role))
                if role == "draft" and cell.trees:
                    sessions[role].calibration = Calibration(cell.trees.accuracies)
                if network is _network and (scores := sessions[role].predictor) and remembers(cell):
                    scores.remember(opened.enter_context(known_exits(cell.target)))
            else:
                sessions[role] = model.local_session(role, device, place, cell.tokens(role))
            opened.callback(sessions[role].engine.close)
            sessions[role].engine.reserve()
        yield sessions


def load(device: Device, sessions: Mapping[str, Session]) -> None:
    """Load the models, emulated."""
    for session in sessions.values():
        with device.phase("load"):
            device.play(session.engine.load())


def prepare(cell: GenerationScenario, device: Device, sessions: dict[str, Session]) -> Serving:
    """Load the models (emulated) or warm up with the first request (real device); prepare the method."""
    if cell.emulated:
        load(device, sessions)
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


def quality(
    cell: GenerationScenario, generations: Sequence[Generation], texts: Sequence[GreedyText] | None
) -> Quality:
    """Compare the answers with the target's own, which a lossless method's must equal, and with the task."""
    own = None if texts is None else _own_answers(texts, cell.requests)
    values = _against_target(cell, generations, texts, own)
    if cell.cost_only:
        return Quality(values)
    decode = cell.target.tokenizer.decode
    said = [decode(g.tokens) for g in generations]
    target_said = None if own is None else [decode(tokens) for tokens in own]
    scored = task_scores.scored(cell.task_metrics, cell.dataset, cell.rows.rows, said, target_said)
    values |= task_scores.evaluated(cell.evaluated, cell.dataset, cell.rows.rows, said)
    lines = answers.lines(generations, said, own, target_said, cell.rows.rows, cell.config["skip"])
    if target_said is not None:
        alike = rouge_by_prompt(said, target_said)
        lines = [{**line, "rouge_l": 100.0 * share} for line, share in zip(lines, alike, strict=True)]
    if scored.answers:
        lines = [{**line, **scores} for line, scores in zip(lines, scored.answers, strict=True)]
    cut = sum(map(answers.is_cut, generations)) if scored.answers else 0
    notes = (
        [f"{cut} of {len(lines)} answers were cut at max_tokens and are scored as they stand"] if cut else []
    )
    return Quality(values | dict(scored.values), scored.uncertainty, lines, notes)


def _own_answers(texts: Sequence[GreedyText], requests: Sequence[Request]) -> list[list[int]]:
    """The target's own texts, cut where its answers end."""
    return [
        fidelity.ended(text.tokens[: request.max_tokens], request.stop)
        for text, request in zip(texts, requests, strict=True)
    ]


def _against_target(
    cell: GenerationScenario,
    generations: Sequence[Generation],
    texts: Sequence[GreedyText] | None,
    own: Sequence[Sequence[int]] | None,
) -> dict[str, Scalar]:
    """The figures of the comparison with the target's own answers, if its text is the greedy one."""
    text_of = str if cell.cost_only else cell.target.tokenizer.decode
    verified, metrics = "target" in cell.places, cell.plain_metrics
    found = fidelity.scores(generations, own, text_of, metrics, verified, cell.method.round_metric)
    if texts is not None and cell.method.lossless:
        found["ties"] = fidelity.require_lossless(generations, texts, cell.target.computes_in)
    return found


def found(
    cell: GenerationScenario,
    device: Device,
    values: dict[str, Scalar],
    matched: Calibrated | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Provenance fields that are known only after the run."""
    fitted = cell.fitted_cells.union(matched.cells if matched else ())
    layers = {role: cell.model(role).model_cost.layer_bytes for role in cell.places}
    extrapolated = cell.cell.extrapolated(device.trace, layers) if cell.emulated else ()
    return {
        "fitted": tuple(sorted(fitted)),
        "matched": asdict(matched) if matched else None,
        "memory": {"emulated_dram": int(device.memory.peak)} if cell.emulated else {},
        "budget": int(device.memory.budget),
        "extrapolated": extrapolated,
        "ends": None if cell.cost_only else _ends(cell.target.tokenizer),
        "notes": (*_notes(cell, device, values), *notes),
    }


def pass_forms(device: Device, sessions: Mapping[str, Session]) -> Iterator[str]:
    """How each model's passes run on a GPU of this machine."""
    if not isinstance(device, LocalDevice) or device.main != GPU:
        return
    for role, session in sessions.items():
        if isinstance(session.engine.network, RecordedNetwork):
            yield f"passes of the {role} of up to {ROWS[-1]} rows were recorded and replayed"
        else:
            yield f"passes of the {role} were launched kernel by kernel"


def _ends(tokenizer: CheckpointTokenizer) -> dict[str, str]:
    """The ids that end an answer, each with its token and what names it."""
    tokens = {number: token for token, number in tokenizer.vocabulary.items() if number in tokenizer.ends}
    return {str(end): f"{tokens.get(end)} ({', '.join(by)})" for end, by in tokenizer.ends.items()}


def _notes(cell: GenerationScenario, device: Device, values: dict[str, Scalar]) -> Iterator[str]:
    """Notes for readers of the figures."""
    yield from stored_notes(*(cell.model(role).folder for role in cell.places))
    if cell.target.folder and (settings := unused(cell.target.folder)):
        name = cell.target.config.name
        yield f"{name}: its {settings}, which transformers' generate would use and this run does not"
    asked, lengths = cell.config["prompt_tokens"], [len(request.prompt) for request in cell.requests]
    if asked and (shorter := sum(length < asked for length in lengths)):
        yield (
            f"{shorter} of {len(lengths)} prompts are shorter than prompt_tokens={asked}, which only cuts: "
            f"they have {min(lengths)} to {max(lengths)} tokens, {round(fmean(lengths))} on average"
        )
    if cell.cell.stand_in:
        yield cell.cell.stand_in
    for lacking, served in device.substituted.items():
        yield f"{lacking} ops ran on {served}"
    if isinstance(device, LocalDevice):
        yield f"flash reads are {device.flash_pacing}"
    width = values.get("verification_width")
    drafted = isinstance(width, (int, float)) and round(width) > 1  # of one row nothing can be accepted
    if drafted and values.get("acceptance_length") == 1.0:
        yield "no draft token was ever accepted: an acceptance length of exactly 1 is rarely a draft's fault"
