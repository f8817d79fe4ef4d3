"""A device file and an engine file of what `board_calibrator` measured on a board.

Owns the form of its JSON file on this side, and what the files say of it. `fit` fits, `sections` and
`machine_files` have the entries, `board_ssh` runs the program on a board.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

from repro.core.errors import InputError
from repro.core.typed import typed
from repro.device.facts.holds import HOLDS_KEY
from repro.device.op import CPU
from repro.device.probing.quiet import Quiet
from repro.models.calibration.board_calibrator import QUERIES_PER_KEY
from repro.models.calibration.board_ssh import measure_over_ssh
from repro.models.calibration.calibrated_files import free_paths, head, write
from repro.models.calibration.fit import fit
from repro.models.calibration.machine_files import (
    machine_section,
    say,
    storage_section,
)
from repro.models.calibration.probe import HEAD, LAYER, Kernels, PartTiming
from repro.models.calibration.sections import engine_of_costs
from repro.models.costs.model_cost import Shape

Positive = Annotated[float, Interval(gt=0)]
Count = Annotated[int, Interval(ge=1)]

BITS_OF_DTYPE = {"float32": 32, "bfloat16": 16, "int8": 8}


@dataclass(frozen=True)
class BoardShape:
    """Sizes of an invented decoder."""

    hidden: Count
    heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count

    @property
    def layer(self) -> Shape:
        """One layer of it, with its output projection."""
        kv_heads = max(1, self.heads // QUERIES_PER_KEY)
        return Shape(1, self.hidden, self.heads, kv_heads, self.head_dim, self.intermediate, self.vocab)


@dataclass(frozen=True)
class BoardPass:
    """A timed pass: seconds of a layer, the mean over all, and of the output projection."""

    dtype: Literal["float32", "bfloat16", "int8"]
    shape: str
    rows: Count
    context: Count
    layer_s: Positive
    head_s: Positive


@dataclass(frozen=True)
class BoardStorage:
    """Bytes per second by bytes of a request, and how they were read, or why they were not."""

    points: tuple[tuple[Count, Positive], ...]
    note: str


@dataclass(frozen=True)
class BoardMeasurement:
    """The content of the JSON file.

    Attributes:
        version: of the file's form.
        date: of the measurement.
        system: operating system and Python.
        processor: what the board calls itself.
        library: whose kernels were timed.
        cores: of the board.
        threads: that computed.
        memory_bytes: of the board.
        memory_bandwidth: bytes per second of reading or copying.
        flash: reads past the cache.
        before: the board's load before the measurement.
        after: and after it.
        shapes: of the probes.
        passes: all that were timed.
    """

    version: Literal[1]
    date: str
    system: str
    processor: str
    library: str
    cores: Count
    threads: Count
    memory_bytes: Positive
    memory_bandwidth: Positive
    flash: BoardStorage
    before: Quiet
    after: Quiet
    shapes: Mapping[str, BoardShape]
    passes: Annotated[tuple[BoardPass, ...], MinLen(1)]

    def timings(self) -> Iterator[PartTiming]:
        """Layers and output projections for the fit."""
        for timed in self.passes:
            kernels, shape = Kernels(timed.dtype), self.shapes[timed.shape].layer
            attention = shape.attention_flops(timed.rows, timed.context)
            setting = timed.rows, timed.context
            yield PartTiming(kernels, LAYER, shape.layer_weights, attention, *setting, timed.layer_s)
            yield PartTiming(kernels, HEAD, shape.head_weights, 0.0, *setting, timed.head_s)


def board_text(
    file: Path | None,
    host: str | None,
    minutes: float | None,
    threads: int | None,
    busy: bool,
    scratch: Path | None,
    others: Mapping[str, object],
) -> tuple[str, str]:
    """The calibrator's JSON, of a file or by running it on a host, and what to call it.

    Args:
        file: of --from-json.
        host: of --ssh.
        minutes: that it may take on the host.
        threads: that compute there.
        busy: measure although the host is busy.
        scratch: a folder on the host's disk to measure.
        others: further options of the command, which go with neither.

    Raises:
        InputError: options that do not go together, no such file, or as `measure_over_ssh`.
    """
    chosen = "--from-json" if file else "--ssh"
    given = {**others, "ssh": host if file else None}
    if file:
        given |= {"minutes": minutes, "threads": threads, "busy": busy, "scratch": scratch}
    for option, value in given.items():
        if value not in (None, [], False):
            raise InputError(f"--{option.replace('_', '-')} does not go with {chosen}")
    if file:
        try:
            return file.read_text(encoding="utf-8"), file.name
        except (OSError, UnicodeError) as wrong:
            raise InputError(f"--from-json {file} cannot be read: {wrong}") from None
    options = {"--minutes": minutes, "--threads": threads, "--scratch": scratch}
    words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return measure_over_ssh(host or "", [*words, *(["--busy"] if busy else [])]), f"a run on {host}"


def read_board(text: str, where: str) -> BoardMeasurement:
    """The content of the calibrator's file; `where` names it in errors.

    Raises:
        InputError: it is not JSON, not of this form, or names a shape that it does not have.
    """
    try:
        content = json.loads(text)
    except ValueError as wrong:
        raise InputError(f"{where} is not JSON ({wrong}); board_calibrator.py writes it") from None
    if not isinstance(content, dict):
        raise InputError(f"{where} has a {type(content).__name__}; board_calibrator.py writes a mapping")
    board = typed(BoardMeasurement, content, where)
    if missing := {timed.shape for timed in board.passes} - set(board.shapes):
        raise InputError(f"{where}: passes of {', '.join(sorted(missing))}, whose sizes are not in `shapes`")
    return board


def write_of_board(conf: Path, name: str | None, text: str, where: str) -> None:
    """Write the files of a board.

    Args:
        conf: the folder where they go.
        name: of the board, as tables show it, by default as it calls itself; the files' names follow from it.
        text: the calibrator's JSON.
        where: what it is called in errors and in the files.

    Raises:
        InputError: the text cannot be read or fitted, or a file's place is not free.
    """
    board = read_board(text, where)
    name = name or board.processor
    paths = free_paths(conf, name, ("device", "engine"))
    costs = fit(board.timings())
    errors = sorted(map(abs, costs.errors))
    fit_errors = f"median {errors[len(errors) // 2]:.0%}, worst {errors[-1]:.0%}"
    bits = {timed.dtype: BITS_OF_DTYPE[timed.dtype] for timed in board.passes}
    formats = " and ".join(f"{dtype} (weights of {count} bits)" for dtype, count in bits.items())
    note = f"{board.library} on {board.threads} threads, {formats}; no other format of weights was measured"
    description = (
        f"{where}, measured on {board.date} on {board.processor}, {board.system}, with {board.library}, "
        f"{board.threads} threads on {board.cores} cores; fit: {fit_errors}"
    )
    load = board.before if not board.before.is_quiet else board.after
    storage = storage_section(board.flash.points, board.flash.note)
    rate, capacity = board.memory_bandwidth, board.memory_bytes
    device = machine_section(name, CPU, costs, rate, capacity, storage, power=None)
    say(f"the fit: {fit_errors}")
    engine = engine_of_costs(f"{board.library} on {name}", costs, CPU, note=note)
    rows = [timed.rows for timed in board.passes]
    engine["processors"][CPU][HOLDS_KEY] = {"rows": [min(rows), max(rows)]}
    write(paths, {"device": device, "engine": engine}, head(description, load))
