"""Conservation laws between a run's answers, its figures and the device's trace.

A run checks them before its record is stored. They are recomputed from the spans alone: energy by integrating
power, reads by counting them. Must not know methods or what an op costs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from repro.device.emulated import EmulatedDevice
from repro.device.op import FLASH
from repro.device.trace import Trace
from repro.libraries import Array, np
from repro.methods.base import Generation
from repro.models.runtime.session import Session
from repro.records.record import Scalar
from repro.scenarios.laws import TOLERANCE

STREAMED_LOAD = re.compile(r"target load \d+")
"""Names of the reads of a streamed target's layers, and of its output projection."""

EXCLUSIVE_PHASES = ("load", "prefill", "decode")
"""Phases of which no second belongs to two."""


def broken_laws(
    answers: Sequence[Generation],
    sessions: Mapping[str, Session],
    device: EmulatedDevice,
    values: Mapping[str, Scalar],
) -> Iterator[str]:
    """A sentence for each law that an emulated run breaks."""
    yield from _of_times(answers)
    yield from _of_phases(device.trace)
    yield from _of_energy(answers, device.trace, values)
    yield from _of_reads(sessions, device.trace)
    yield from _of_rates(device)


def _of_times(answers: Sequence[Generation]) -> Iterator[str]:
    """A request arrives, is prefilled, then decoded round by round, and ends before the next one arrives."""
    last_end = 0.0
    for answer in answers:
        times = [last_end, answer.arrived, answer.first, answer.prefilled]
        for round_ in answer.rounds:
            times += [round_.start, round_.end]
        times.append(answer.ended)
        if times != sorted(times):
            yield f"request {answer.request.id}: its times do not follow each other: {times[:6]} ..."
        starts = [answer.prefilled, *(round_.end for round_ in answer.rounds)]
        if starts != [*(round_.start for round_ in answer.rounds), answer.ended]:
            yield f"request {answer.request.id}: its prefill and its rounds do not partition its time"
        last_end = answer.ended


def _of_phases(trace: Trace) -> Iterator[str]:
    phases = sorted((p for p in trace.phases if p.name in EXCLUSIVE_PHASES), key=lambda p: (p.start, p.end))
    for phase, next_phase in pairwise(phases):
        if next_phase.start < phase.end - TOLERANCE * phase.end:
            yield f"phases {phase.name} and {next_phase.name} overlap from {next_phase.start:.9g} s"


def _of_energy(answers: Sequence[Generation], trace: Trace, values: Mapping[str, Scalar]) -> Iterator[str]:
    """Energies are the integral of power, idle power included, over the prefills and over the decoding.

    Measured ones are what they are.
    """
    if trace.idle_watts is None or trace.readings:
        return
    edges = np.array([[a.arrived, a.prefilled, a.ended if a.rounds else a.prefilled] for a in answers])
    energy = _integrate_power(trace, edges)
    for name, joules in (
        ("prefill_joules", float((energy[:, 1] - energy[:, 0]).sum())),
        ("decode_joules", float((energy[:, 2] - energy[:, 1]).sum())),
    ):
        figure = values.get(name)
        if isinstance(figure, (int, float)) and not np.isclose(figure, joules, rtol=TOLERANCE, atol=1e-9):
            yield f"{name} is the integral of power: {figure:.10g} is not {joules:.10g}"


def _integrate_power(trace: Trace, moments: Array) -> Array:
    """Joules from 0 to each of these times, by integrating the sum of the spans' powers over time."""
    lasting_spans = np.array([(s.start, s.end, s.joules) for s in trace if s.end > s.start]).reshape(-1, 3)
    watts = lasting_spans[:, 2] / (lasting_spans[:, 1] - lasting_spans[:, 0])
    times = np.concatenate([lasting_spans[:, 0], lasting_spans[:, 1]])
    order = np.argsort(times, kind="stable")
    power = np.cumsum(np.concatenate([watts, -watts])[order])[:-1]
    joules = np.concatenate([[0.0], np.cumsum(power * np.diff(times[order]))])
    return np.asarray(np.interp(moments, times[order], joules) + (trace.idle_watts or 0.0) * moments)


def _of_reads(sessions: Mapping[str, Session], trace: Trace) -> Iterator[str]:
    """Each streamed layer of the target is read once a pass, and at most once more, ahead of the next."""
    reads = Counter(s.name for s in trace if s.on == FLASH and STREAMED_LOAD.fullmatch(s.name))
    pass_count = len(sessions["target"].passes) if "target" in sessions else 0
    for name, read_count in reads.items():
        if not pass_count <= read_count <= pass_count + 1:
            yield f"{name}: {read_count} reads in {pass_count} passes, in which it is read once each"


def _of_rates(device: EmulatedDevice) -> Iterator[str]:
    """No op moves bytes faster than the memory does."""
    bandwidth = device.machine.dram_bandwidth
    for span in device.trace:
        if span.bytes > (1 + TOLERANCE) * bandwidth * span.seconds + 1.0:
            yield (
                f"{span.name} on {span.on} moves {span.bytes:.4g} bytes in {span.seconds:.4g} s, "
                f"faster than the memory's {bandwidth:.4g} bytes/s"
            )
            return
