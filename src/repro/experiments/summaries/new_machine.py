"""What is said of a machine that rows were given for: how far off to expect it, and which method is fastest.

Owns the small set of methods that are emulated, without weights, and the reading of the committed validation.
Must not know how the machine's files are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.core.paths import project_root
from repro.core.reading import csv_reader
from repro.core.registry import lookup
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.draws import chance, drawn
from repro.device.engines.engine_file import with_engine
from repro.methods.base import Method, Request
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.costs.public_models import public_models
from repro.models.forward.network import KnownStep, Logits, Network, NoNetwork, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.reports.advice import SystemAnswer, what_reorders
from repro.reports.formats.layout import fixed_point

METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "std": ("Std", {}),
    "chain_sd": ("Chain-SD", {"resident": 1.0}),
    "edgellm": ("EdgeLLM", {"resident": 1.0}),
    "lever": ("LEVER", {"resident": 1.0, "pruning": "off"}),
}
"""The methods with their names and settings: all in memory, LEVER without what reads hidden states."""
PAIR = {"target": ("qwen3_4b", "Qwen3-4B"), "draft": ("qwen3_0_6b", "Qwen3-0.6B")}
FORMATS = {"int8": "q4_0", "fp16": "fp16", "fp32": "fp32"}
"""The format in which the pair is costed, by what the processor computes in."""
AGREEMENT = 0.8
"""How often the draft's first choice is the target's next token."""
RANKS = 8
PROMPT_TOKENS, ANSWER_TOKENS = 64, 48
MACHINE_DRAWS = 8
VALIDATION = Path("validation") / "phones" / "table.csv"
ROW_COUNTS = {0: "a chip that nobody measured", 2: "2 rows of the chip", 9: "9 rows of the chip"}
"""What the validation calls predictions by how many rows of the chip were known."""


def answer_lines(device: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """What the calibration of a machine ends with."""
    return [*expected_errors(project_root() / "results"), fastest_method(with_engine(device, engine))]


def expected_errors(results: Path) -> Iterator[str]:
    """The median errors of the committed validation, by known rows of the chip, a sentence a line."""
    path = results / VALIDATION
    lines = []
    if path.is_file():
        with csv_reader(path) as reader:
            lines = list(reader)
    for count, beginning in ROW_COUNTS.items():
        medians: dict[str, list[float]] = {}
        for line in lines:
            if line["rows"].startswith(beginning) and line["median error, %"]:
                medians.setdefault(line["of"], []).append(float(line["median error, %"]))
        known = f"with {count or 'no'} rows of the chip and its engine"
        if medians:
            errors = ", ".join(f"{quantity} {_ends(values)}%" for quantity, values in medians.items())
            yield f"expected median error {known}, by kind of device: {errors}"
        else:
            yield f"expected median error {known}: no committed validation says"


def _ends(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def fastest_method(described: Mapping[str, Any]) -> str:
    """Which method decodes fastest in memory on a machine, and against which that is open.

    The machine as it is decides; an order is open if any of its drawn machines turns it. Components are
    registered before (`composing.load_components`).

    Args:
        described: a device file with an engine's numbers over it.
    """
    arithmetic = next(name for name in FORMATS if name in described["processors"][described["main"]]["peak"])
    machines = [described, *(drawn(described, draw) for draw in range(MACHINE_DRAWS))]
    answers = []
    for name, (title, settings) in METHODS.items():
        seconds, *draws = (
            decode_seconds(lookup("method", name)(**settings), one, arithmetic) for one in machines
        )
        answers.append(SystemAnswer(name, title, seconds, None, {}, tuple(draws)))
    leader, *followers = sorted(answers, key=lambda answer: answer.seconds)
    open_names = [answer.name for answer in followers if what_reorders(leader, answer)]
    behind = [answer.name for answer in followers if answer.name not in open_names]
    models = " and ".join(title for _, title in PAIR.values())
    speed = fixed_point((ANSWER_TOKENS - 1) / leader.seconds, 1)
    return (
        f"{leader.name} is fastest ({speed} tokens/s, {models} in {FORMATS[arithmetic]} in memory, "
        f"drafts that agree {AGREEMENT:.0%} of the time)"
        + (f"; open against {_join(open_names)}" if open_names else "")
        + (f"; in any case behind it: {_join(behind)}" if behind else "")
    )


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def decode_seconds(method: Method, described: Mapping[str, Any], arithmetic: str) -> float:
    """Seconds of decoding one answer of `PAIR` by a method, on a machine with room for it."""
    device = EmulatedDevice(replace(machine(described), dram_budget=1e15))
    networks: dict[str, Network] = {"target": NoNetwork(), "draft": AgreeingNetwork(AGREEMENT)}
    sessions = {
        role: Session(Engine(role, device, _cost(PAIR[role][0], arithmetic), networks[role], place))
        for role, place in method.places().items()
    }
    request = Request("fastest", tuple(range(1, PROMPT_TOKENS + 1)), ANSWER_TOKENS)
    for session in sessions.values():
        session.start(request.prefix)
    device.play(method.serve(request, device, sessions))
    return sum(phase.end - phase.start for phase in device.trace.phases if phase.name == "decode")


def _cost(model: str, arithmetic: str) -> ModelCost:
    return ModelCost(public_models()[model].shape, precision(FORMATS[arithmetic]))


class AgreeingNetwork(NoNetwork):
    """A draft whose first choice is the token of a `NoNetwork` as often as asked for, else its second one is.

    Its confidence is the same after every sequence: its first choice's is its agreement, each later rank has
    that share of what is left.
    """

    def __init__(self, agreement: float) -> None:
        self._agreement = agreement
        self._logps = [math.log(agreement) + rank * math.log(1 - agreement) for rank in range(RANKS)]

    def begin(self, prefixes: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """See `Network`."""
        return KnownStep([Logits(None, (self._tokens(prefix), self._logps)) for prefix in prefixes])

    def _tokens(self, prefix: Prefix) -> list[int]:
        is_right = chance(prefix.digest.hex()) < self._agreement
        return [*((0, 1) if is_right else (1, 0)), *range(2, RANKS)]
