"""One measured run of a method with a real model pair on this machine, for `pairs.py`.

Owns a run's stored form and what it measures beside the cell's own record. Must not know which methods are
compared, nor how runs are compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.emulated import Device
from repro.device.local import LocalDevice
from repro.device.trace import Trace
from repro.experiments.cli import plain, publish
from repro.models.calibration.machine_speed import read_bandwidth
from repro.records.provenance import peak_resident_bytes
from repro.records.record import Record
from repro.scenarios.generation.scenario import GenerationScenario

FOOTPRINT = 1 << 29
"""Bytes read to measure memory bandwidth: more than the caches hold."""


class Observed(GenerationScenario):
    """A cell that keeps the device it ran on, since a record has figures of the trace and not the trace."""

    device: Device

    def open_device(self) -> Device:
        """See `GenerationScenario`."""
        self.device = super().open_device()
        return self.device


@dataclass(frozen=True)
class Run:
    """One method's answers to one dataset's prompts in one round.

    Attributes:
        arm: the method with its settings, `name:setting=value:...`.
        dataset: its name.
        round: number of the round, from 0.
        record: the cell's record; its `ties` are answers that leave the target's text at a tie of logits.
        rounds: the cell's verifications.
        idle: seconds of decoding in which neither a processor nor the disk worked.
        floor: seconds that reading alone takes; `None` if the disk's reads are held to no pace.
        resident: peak resident bytes of the process that answered.
        held: peak bytes that the models held, by the device's own account.
        notes: remarks.
    """

    arm: str
    dataset: str
    round: int
    record: Record
    rounds: Sequence[Mapping[str, Any]]
    idle: float
    floor: float | None
    resident: float
    held: float
    notes: Sequence[str]

    def figure(self, name: str) -> float:
        """A figure of the record; 0 where it is absent."""
        return figure(self.record, name)

    @property
    def passing(self) -> float:
        """Seconds of the target's passes while decoding."""
        return self.figure("target_pass") * self.figure("target_calls")

    @property
    def between(self) -> float:
        """Seconds of decoding in which no model's pass ran: trees are built and answers accepted then."""
        drafting = self.figure("draft_seconds") * (1 - self.figure("draft_hidden"))
        return max(0.0, self.figure("decode_seconds") - self.passing - drafting)

    @property
    def paces(self) -> dict[str, float]:
        """Seconds per token by prompt; answers of a single token have none."""
        mine: dict[str, list[Mapping[str, Any]]] = {}
        for one in self.rounds:
            mine.setdefault(one["request"], []).append(one)
        return {
            prompt: (rounds[-1]["end"] - rounds[0]["start"]) / sum(one["emitted"] for one in rounds)
            for prompt, rounds in mine.items()
        }

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(vars(self) | {"record": json.loads(self.record.to_json())})

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Run:
        """A run from its JSON object."""
        return cls(**{**given, "record": Record.from_json(json.dumps(given["record"]))})


def figure(record: Record, name: str) -> float:
    """A figure of a record; 0 where it is absent."""
    return float(record.values.get(name) or 0.0)


def measured(arm: str, dataset: str, number: int, overrides: Sequence[str]) -> Run:
    """Run a cell once, after its warm-up, in this process."""
    cell, notes = opened(arm, dataset, overrides)
    cell.check()
    resident = [0]

    def progress(stage: str, done: int, count: int) -> None:
        if stage == "answering":  # what follows, the target's own text, needs memory that the method does not
            resident.append(peak_resident_bytes())

    found = cell.run(progress)
    return Run(
        arm=arm,
        dataset=dataset,
        round=number,
        record=found.record,
        rounds=found.rounds,
        idle=idle(cell.device.trace, found.rounds),
        floor=floor(cell, found.record),
        resident=float(resident[-1]),
        held=float(cell.device.memory.peak),
        notes=[*notes, *found.record.provenance.notes],
    )


def opened(arm: str, dataset: str, overrides: Sequence[str]) -> tuple[Observed, list[str]]:
    """The cell of `name:setting=value:...`; without pruning if the target has no early-exit predictor."""
    method, *own = arm.split(":")
    chosen = [f"method={method}", f"dataset={dataset}", "device=local_cpu", "repeats=1"]
    chosen += [f"method.{setting}" for setting in own]
    cell = composed([*chosen, *overrides])
    if any(place.early_exit for place in cell.places.values()) and "pruning=" not in arm:
        try:
            _ = cell.target.predictor_folder
        except InputError as lacking:
            return composed([*chosen, "method.pruning=off", *overrides]), [f"without pruning: {lacking}"]
    return cell, []


def composed(overrides: Sequence[str]) -> Observed:
    """The cell of a command line."""
    publish()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return Observed(plain(compose("config", overrides=list(overrides))))


def floor(cell: Observed, record: Record) -> float | None:
    """Seconds that a run's reading alone takes: from the disk at its pace, else of all weights once a pass.

    Memory is as fast as it is measured here, after the run.
    """
    tokens, calls, each = (
        figure(record, name) for name in ("decode_tokens", "target_calls", "flash_bytes_per_token")
    )
    if each:
        assert isinstance(cell.device, LocalDevice)
        pace = cell.device.machine.pace
        return each * tokens / pace if pace else None
    bandwidth = read_bandwidth(torch.device("cpu"), FOOTPRINT, seconds=1.0)
    return cell.target.decoder().weight_bytes * calls / bandwidth


def idle(trace: Trace, rounds: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of the rounds in which no resource worked: an upper bound of the method's own Python time."""
    total = 0.0
    for one in rounds:
        start, end = float(one["start"]), float(one["end"])
        spans = [(span.start, span.end) for span in trace.within(start, end)]
        total += end - start - covered(spans, start, end)
    return total


def covered(stretches: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Seconds of a window covered by time intervals, which may overlap each other and the window's ends."""
    total, reached = 0.0, start
    for left, right in sorted(stretches):
        total += max(0.0, min(right, end) - max(left, reached))
        reached = max(reached, right)
    return total
