"""What is computed before a method runs, and where its models look rows up while it runs.

A row is what a model says after a prefix of tokens. Six roads lead to rows, and all begin here:

| rows | of | after | for |
|---|---|---|---|
| references | the target | each prompt, along its own text | judging answers; what a replayed target says |
| calibration | the target | each calibration prompt, likewise | the draft's agreement |
| altered | the target as a method alters it | each prompt, likewise | what it says while the method runs |
| agreement | the draft | the calibration texts, a pass each | bringing the draft to a value |
| branches | any model | whatever a method asks for | looked up in the model's cache, else computed |
| outputs | a network beside a model | likewise | likewise |

The first three are greedy texts: `plan` lists them in the order in which they are computed, and all take the
same way. Must not know how a method drafts or verifies, nor figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from repro.methods.base import Request
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Network
from repro.models.forward.side_by_side import GreedyText, Report
from repro.models.observations import own_text, transfer
from repro.models.runtime.model import Model
from repro.models.runtime.side_network import SideNetwork
from repro.models.tokens.prefix import Prefix
from repro.records.build_cache import forgetting, memory_root
from repro.scenarios.base import Progress
from repro.scenarios.generation import draft_calibration
from repro.scenarios.generation.answers import answer_of
from repro.scenarios.generation.asked import GenerationCell
from repro.scenarios.generation.draft_calibration import Agreement, Calibrated, HeadMatch

REFERENCES, CALIBRATION, ALTERED = "references", "calibration", "altered"


class Prefixes(NamedTuple):
    """Prompts after which a model's greedy text is computed before a method runs.

    Attributes:
        needed_for: what needs the texts, `REFERENCES`, `CALIBRATION` or `ALTERED`.
        model: the model that says them.
        requests: the requests with the prompts.
        stage: what progress says of them.
    """

    needed_for: str
    model: Model
    requests: Sequence[Request]
    stage: str


def plan(cell: GenerationCell) -> Iterator[Prefixes]:
    """The texts that a cell needs before its method runs, in the order in which they are computed."""
    target = cell.target
    if not target.folder:
        return
    if cell.sampling.greedy:
        stage = "computing the target's text, which no pack has,"
        yield Prefixes(REFERENCES, target, cell.requests, stage)
    if cell.calibrates:
        yield Prefixes(CALIBRATION, target, cell.calibration, "the target's text to calibrate on")
    if cell.method.alters_target and remembers(cell):
        with closing(cell.open_device()) as device:
            model = cell.method.variant("target", target, device)
        yield Prefixes(ALTERED, model, cell.requests, f"computing texts of {cell.name}'s target")


@dataclass(frozen=True)
class PreparedRows:
    """What was computed before a method runs.

    Attributes:
        references: the target's own text after each prompt, longer than an answer may be, with the rows that
            it was chosen from; None if answers are sampled or nothing computes.
        calibrated: what the draft was brought to, if it was to be.
    """

    references: Sequence[GreedyText] | None
    calibrated: Calibrated | None


def prepare_rows(cell: GenerationCell, progress: Progress) -> PreparedRows:
    """Compute what a cell's plan lists, then calibrate its draft.

    Raises:
        InputError: the draft cannot be brought to the value asked for.
    """
    texts = {prefixes.needed_for: texts_after(cell, prefixes, progress) for prefixes in plan(cell)}
    return PreparedRows(texts.get(REFERENCES), _calibrate(cell, texts.get(CALIBRATION, []), progress))


def remembers(cell: GenerationCell) -> bool:
    """Whether the cell looks rows up that were computed before."""
    return bool(cell.config["memo"]) and cell.emulated and cell.sampling.greedy


def texts_after(cell: GenerationCell, prefixes: Prefixes, progress: Progress) -> list[GreedyText]:
    """The text after each prompt: stored ones, those of packs, and the others computed side by side.

    Rows along a computed text go to the model's cache, if the cell looks rows up.
    """
    model, prompts = prefixes.model, [request.prefix for request in prefixes.requests]
    token_count = int(cell.config["max_tokens"]) + own_text.BEYOND
    with ExitStack() as stack:
        root = memory_root() if cell.config["memo"] else stack.enter_context(forgetting())
        store = stack.enter_context(closing(model.texts(root)))
        transfer.fill_texts(store, model.outputs_key())
        memo = stack.enter_context(closing(model.memo(root))) if remembers(cell) else None

        def compute(prompts: Sequence[Prefix], token_count: int, report: Report) -> list[GreedyText]:
            texts = model.compute_texts(prompts, token_count, report)
            if memo and not cell.target.encoder_decoder:
                for text in texts:
                    memo.put([context.digest for context in text.contexts()], text.rows)
            return texts

        def report(done: int) -> None:
            progress(prefixes.stage, done, token_count * len(prompts))

        return own_text.own_texts(store, compute, prompts, token_count, report)


def _calibrate(cell: GenerationCell, texts: Sequence[GreedyText], progress: Progress) -> Calibrated | None:
    """What the draft is brought to, by the target's texts after the calibration prompts."""
    goal = cell.match
    if goal is None or isinstance(goal, HeadMatch):
        return goal

    def measure() -> Agreement:
        def report(done: int) -> None:
            progress("matching agreement", done, len(texts))

        return agreement(cell, cell.calibration, texts, report)

    def agreement_at(share: float) -> Agreement:
        cell.take_share(share)
        return measure()

    if not cell.interpolates:
        confidences = cell.config["draft_calibration"] != draft_calibration.CHOICES
        return draft_calibration.match(goal, measure(), confidences)
    matched = draft_calibration.match_weights(goal, cell.config["seed"], agreement_at)
    cell.take_share(matched.share)
    return matched


def agreement(
    cell: GenerationCell,
    requests: Sequence[Request],
    texts: Sequence[GreedyText],
    report: Callable[[int], None] = lambda done: None,
) -> Agreement:
    """How often the draft as it is predicts the tokens of the target's answers to requests."""
    answers = [(text.prompt, answer_of(text, request)) for text, request in zip(texts, requests, strict=True)]
    with network_of(cell, cell.draft, "draft") as draft:
        return draft_calibration.native(answers, draft, report)


OpenNetwork = Callable[[GenerationCell, Model, str], AbstractContextManager[Network]]
"""Opens the network of a model in a role."""


@contextmanager
def network_of(cell: GenerationCell, model: Model, role: str) -> Iterator[Network]:
    """Open a model's network, which looks rows up in the model's cache if the cell does so."""
    if not (remembers(cell) and model.folder):
        yield model.network()
        return
    with closing(model.memo(memory_root())) as memo:
        transfer.fill(memo, model.outputs_key())
        yield model.network(memo, cell.method.ranks(role))


@contextmanager
def outputs_of(model: Model, side: SideNetwork) -> Iterator[LogitCache]:
    """Open the cache of the outputs of a network beside a model."""
    with closing(model.memo(memory_root(), side.variant)) as memo:
        transfer.fill(memo, model.outputs_key(side.variant))
        yield memo
