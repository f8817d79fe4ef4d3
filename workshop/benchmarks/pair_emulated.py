"""What the emulator, calibrated on this machine, says of the answers that were measured here.

Owns the emulated machine and its runs. Must not see a measured answer: it gets probes and units alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from repro.models.calibration.fit import FittedCosts, fit
from repro.models.calibration.sections import Section, engine_of_costs
from repro.models.forward.exactness import divergence
from repro.models.forward.side_by_side import GreedyText
from repro.records.record import content_hash, write_atomically
from repro.scenarios.base import Progress
from repro.scenarios.generation.answers import until_stop
from repro.scenarios.generation.prefixes import prepare_rows
from workshop.benchmarks.pair_parts import PARTS, Plan
from workshop.benchmarks.pair_run import NULL, Answer, PairCell, Unit, cell_of
from workshop.validation.this_machine.cells import CellGroup
from workshop.validation.this_machine.measuring import MeasuredGroup
from workshop.validation.this_machine.predicting import best_bandwidth, device_of


class Predicted(NamedTuple):
    """An emulated answer.

    Attributes:
        decode_s: seconds after all models have read the prompt.
        decoded: tokens after the first.
        passes: verifications.
    """

    decode_s: float
    decoded: int
    passes: int


PACE = 1e9
"""Bytes a second that reads are held to (conf/device/local_cpu.yaml)."""


class EmulatedMachine:
    """This machine as its probes say."""

    def __init__(self, probes: Sequence[Mapping[str, Any]]) -> None:
        """Fit costs to probes."""
        self.measured = [_group(probe) for probe in probes]
        self.costs: FittedCosts = fit(timing for one in self.measured for timing in one.probe_timings())

    @property
    def bandwidth(self) -> float:
        """Bytes a second that memory gave at best."""
        return best_bandwidth(self.measured)

    def sections(self, streamed: bool, budget: float) -> dict[str, Section]:
        """Device and engine of a part: with layers as stored if they are streamed, else reordered."""
        disks = [rate for one in self.measured for rate in one.disk]
        latency, disk = self.costs.reads or (0.0, min([PACE, median(disks)] if disks else [PACE]))
        device = device_of(self.costs, disk, self.bandwidth, latency)
        device["dram"]["budget"]["value"] = budget
        return {"device": device, "engine": engine_of_costs("repro here", self.costs, is_packed=not streamed)}


class Predictions:
    """Emulated answers, in a file that an earlier page may have written."""

    def __init__(self, machine: EmulatedMachine, plan: Plan, file: Path, progress: Progress) -> None:
        self.machine, self._plan, self._file, self._progress = machine, plan, file, progress
        self._stored: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def of(self, unit: Unit) -> list[Predicted]:
        """The emulated answers of a unit's arm to its dataset's prompts."""
        part, arm = PARTS[unit.part], unit.arm.removesuffix(NULL)
        machine = self.machine.sections(part.streamed, part.budget)
        settings = [*self._plan.settings(unit.part), f"max_tokens={unit.asked}"]
        key = content_hash([arm, unit.dataset, settings, machine])
        if key not in self._stored:
            print(f"emulating {unit.part} {unit.dataset} {arm}", file=sys.stderr, flush=True)
            self._stored[key] = predicted(arm, unit.dataset, settings, machine, self._progress)
            write_atomically(self._file, json.dumps(self._stored))
        return [Predicted(*answer) for answer in self._stored[key]]


def _group(probe: Mapping[str, Any]) -> MeasuredGroup:
    lists = {name: [tuple(each) for each in probe[name]] for name in ("passes", "timings")}
    return MeasuredGroup(**{**probe, **lists, "group": CellGroup(**probe["group"])})


def predicted(
    arm: str, dataset: str, overrides: Sequence[str], machine: Mapping[str, Section], progress: Progress
) -> list[Predicted]:
    """The emulated answers of an arm to a dataset's prompts."""
    cell, _ = cell_of(arm, dataset, overrides, machine)
    cell.check()
    rounds = cell.run(progress).rounds
    return [_answer([each for each in rounds if each["request"] == request.id]) for request in cell.requests]


def _answer(rounds: Sequence[Mapping[str, Any]]) -> Predicted:
    if not rounds:
        return Predicted(0.0, 0, 0)
    decoded, passes = sum(each["emitted"] for each in rounds), sum(each["rows"] > 0 for each in rounds)
    return Predicted(rounds[-1]["end"] - rounds[0]["start"], decoded, passes)


def target_texts(cell: PairCell, progress: Progress) -> list[GreedyText]:
    """The target's own greedy texts of a cell's prompts."""
    return [*(prepare_rows(cell, progress).references or ())]


def verdict(answer: Answer, cell: PairCell, text: GreedyText) -> str:
    """`equal` to the target's own text, `tie` if it leaves it at a tie of logits, else `differs`."""
    unit = answer.unit
    stop = cell.requests[unit.prompt].stop
    own = until_stop(text.tokens[: unit.asked], stop)
    left = divergence(answer.tokens, own, text.rows.__getitem__, cell.target.config.dtype)
    return "equal" if left is None else "tie" if left.tie else "differs"
