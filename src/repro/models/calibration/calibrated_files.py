"""A machine's device file and engine files, from measuring it or from rows that were measured on it.

Owns where the files go and what they say of how they were made. `machine_files` measures, `fit` and
`llama_bench` fit, `sections` has the entries.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import yaml
from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.paths import conf_dir, in_checkout
from repro.core.reading import read_mapping
from repro.core.registry import require_choice
from repro.core.typed import require
from repro.device.device_file import facts
from repro.device.engines.engine_file import device_file
from repro.device.op import CPU, GPU
from repro.device.probing.quiet import Quiet, self_test
from repro.models.calibration.fit import fit
from repro.models.calibration.known_machine import KnownMachine
from repro.models.calibration.llama_bench import (
    ChipMemory,
    bench_device,
    bench_engine,
    fit_processors,
    summary,
)
from repro.models.calibration.llama_bench_file import BenchRow, bench_rows, chosen, read_tests
from repro.models.calibration.machine_files import (
    FULL_EFFORT,
    QUICK_EFFORT,
    device_section,
    engine_sections,
    quiet_kernel,
    say,
    time_probes,
)
from repro.models.calibration.rows_file import measured_rows, read_rows
from repro.models.calibration.sections import Section, render, require_composing
from repro.models.calibration.stated_facts import StatedFacts
from repro.models.costs.model_cost import Shape
from repro.models.costs.public_models import public_models
from repro.records.build_cache import cache_root
from repro.records.record import write_atomically

FIRST_LINE = "# Written by `repro calibrate`"


def require_quiet(busy: bool) -> Quiet:
    """The self-test's outcome; InputError for a busy machine, unless `busy` allows it."""
    quiet = self_test(quiet_kernel())
    if not quiet.is_quiet and not busy:
        raise InputError(f"this machine is too busy to measure: {quiet.sentence}; stop them, or add --busy")
    return quiet


def require_device(kind: str) -> str:
    """The processor that is measured; InputError if there is none of its kind."""
    require_choice("--device", kind, ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU, and torch sees none; choose --device cpu")
    return GPU if kind == "cuda" else CPU


def card() -> str:
    """The GPU's name and the version of CUDA that torch was built with."""
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def conf_folder(folder: Path | None) -> Path:
    """The folder where files go: by default the checkout's conf, or ./conf, which is made."""
    folder = folder or (conf_dir() if in_checkout() else Path("conf"))
    if folder == Path("conf"):
        for group in ("device", "engine"):
            (folder / group).mkdir(parents=True, exist_ok=True)
    return folder


def free_paths(folder: Path, name: str, files: Sequence[str]) -> dict[str, Path]:
    """Where a machine's files go, by `device`, `engine` or `engine_streamed`.

    Raises:
        InputError: a folder is not there, or a file that no calibration wrote is.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "calibrated"
    paths = {}
    for kind in files:
        group = kind.partition("_")[0]
        path = paths[kind] = folder / group / f"{stem}{kind.removeprefix(group)}.yaml"
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}; --conf names one with device/ and engine/")
        if path.exists() and not path.read_text(encoding="utf-8").startswith(FIRST_LINE):
            raise InputError(f"{path} was not written by `repro calibrate`; choose another --name or --conf")
    return paths


def head(description: str, quiet: Quiet | None = None, is_quick: bool = False) -> list[str]:
    """The comment lines that a file begins with."""
    lines = [f"{FIRST_LINE} on {datetime.now(UTC):%Y-%m-%d}: {description}."]
    if quiet is not None and not quiet.is_quiet:
        lines.append(f"# The machine was busy: {quiet.sentence}.")
    if is_quick:
        lines.append(
            "# Quick figures: weights stay in caches, so that rates are too high. Run it without --quick."
        )
    return lines


def write(paths: Mapping[str, Path], files: Mapping[str, Section], lines: Sequence[str]) -> None:
    """Write the files below comment lines, after trying whether they compose."""
    texts = {name: render(section, lines) for name, section in files.items()}
    device, *engines = (yaml.safe_load(text) for text in texts.values())
    require_composing(device, engines)
    for name, text in texts.items():
        write_atomically(paths[name], text)
        print(paths[name])
    stem, folder = paths["device"].stem, paths["device"].parents[1]
    option = "" if folder == conf_dir() else f" --config-dir {shlex.quote(str(folder))}"
    print(f"use them with device={stem} engine={stem}{option}")


def write_of_this_machine(
    conf: Path, name: str | None, device: str, quick: bool, busy: bool, scratch: Path | None
) -> None:
    """Measure this machine and write its files.

    Args:
        conf: the folder where they go.
        name: of the machine, as tables show it; the files' names follow from it.
        device: the processor that is measured, `cpu` or `cuda`.
        quick: seconds, for a look; rates are too high.
        busy: measure although the machine is busy.
        scratch: a folder on the disk to measure; one of the cache by default.

    Raises:
        InputError: the machine is busy, has no such processor or too full a disk, passes take no longer the
            larger they are and differ too much to say why, or a file's place is not free.
    """
    processor, name, effort = (
        require_device(device),
        name or "Calibrated",
        QUICK_EFFORT if quick else FULL_EFFORT,
    )
    paths = free_paths(
        conf, name, ("device", "engine") if processor == GPU else ("device", "engine", "engine_streamed")
    )
    quiet = require_quiet(busy or quick)
    say(quiet.sentence)
    timings = time_probes(processor, effort)
    costs = fit(timings.parts)
    device_facts = device_section(name, processor, costs, effort, scratch or cache_root() / "calibrate")
    hardware = card() if processor == GPU else f"{torch.get_num_threads()} threads"
    errors = sorted(map(abs, costs.errors))
    fit_errors = f"median {errors[len(errors) // 2]:.0%}, worst {errors[-1]:.0%}"
    lines = head(f"torch {torch.__version__}, {hardware}; fit: {fit_errors}", quiet, quick)
    for kernels, note in timings.notes.items():
        say(f"{kernels.label}: {note}")
        lines.append(f"# {kernels.label}: {note}.")
    write(paths, {"device": device_facts, **engine_sections(name, processor, costs)}, lines)


@dataclass(frozen=True)
class RowFiles:
    """Files with measured rows, and which of them are used.

    Attributes:
        llama_bench: what llama-bench wrote as JSON.
        tables: CSV files of `rows_file`.
        threads: whose rows are used; by default those of the fastest.
        setting: FIELD=VALUE, or COLUMN=VALUE, of the rows that are used.
        active_parameters: that a token uses of a mixture of experts.
    """

    llama_bench: Sequence[Path] = ()
    tables: Sequence[Path] = ()
    threads: int | None = None
    setting: Sequence[str] = ()
    active_parameters: float | None = None

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [*self.llama_bench, *self.tables]

    def read(self, shapes: Mapping[str, Shape]) -> tuple[list[BenchRow], str, str]:
        """The rows, the machine's name where they say it, and the builds that they are of.

        Raises:
            InputError: see `llama_bench_file` and `rows_file`.
        """
        if self.llama_bench and self.tables:
            raise InputError("--from-llama-bench and --rows: give one of them")
        if self.tables:
            lines = [line for path in self.tables for line in read_rows(path, self.setting)]
            rows = measured_rows(lines, shapes)
            devices = dict.fromkeys(line["device"] for line in lines if line.get("device"))
            if len(devices) > 1:
                raise InputError(
                    f"the rows are of several devices ({', '.join(devices)}); choose one, as --setting "
                    f'"device={next(iter(devices))}"'
                )
            return rows, next(iter(devices), ""), _list({line.get("version", ""): None for line in lines})
        tests = chosen([test for path in self.llama_bench for test in read_tests(path)], self.setting)
        rows = bench_rows(tests, shapes, self.active_parameters)
        field = "cpu_info" if rows[0].on == CPU else "gpu_info"
        builds = _list({str(test.get("build_commit") or ""): None for test in tests})
        return rows, str(tests[0].get(field) or ""), f"llama.cpp {builds}"


def _list(names: Mapping[str, None]) -> str:
    return ", ".join(filter(None, names)) or "of unknown build"


def write_of_rows(
    conf: Path,
    name: str | None,
    device: str | None,
    files: RowFiles,
    stated: StatedFacts,
    bandwidth: float | None = None,
) -> tuple[Section, Section]:
    """Write the files of a machine by measured rows, and return them.

    Args:
        conf: the folder where they go.
        name: of the machine, by default as the rows say it; the files' names follow from it, or from the
            first file's name.
        device: a file of conf/device whose chip's data sheet and classes of engines stand behind the rows.
        files: with the rows.
        stated: what the user says beside them.
        bandwidth: of the chip's memory in GB/s.

    Raises:
        InputError: the rows cannot be fitted, or a file's place is not free.
    """
    paths = free_paths(conf, name or files.paths[0].stem, ("device", "engine"))
    known = known_machine(device, conf) if device else None
    memory = known_memory(known, bandwidth)
    rows, own_name, builds = files.read(known_shapes(conf))
    fits = fit_processors(rows, files.threads, known)
    for line in summary(fits):
        say(line)
    name = name or own_name or files.paths[0].stem
    origin = ", ".join(path.name for path in files.paths)
    thread_counts = [f"{bench.threads} threads" for bench in fits.values() if bench.threads]
    description = ", ".join([builds, origin, *files.setting, *dict.fromkeys(thread_counts)])
    size = max(row.size for row in rows)
    device_facts = stated.put_over(bench_device(name, fits, size, origin, known, memory))
    engine = bench_engine(f"Rows of {name}" if files.tables else f"llama.cpp on {name}", fits, origin, known)
    write(paths, {"device": device_facts, "engine": engine}, head(description))
    return device_facts, engine


def known_shapes(conf: Path) -> dict[str, Shape]:
    """The shapes of models by name, those in a folder of one's own included."""
    folders = (conf_dir() / "model" / "shape", conf / "model" / "shape")
    of_files = {path.stem: _shape(path) for folder in folders for path in sorted(folder.glob("*.yaml"))}
    public = {name: model.shape for name, model in public_models().items() if model.kind == "transformer"}
    return {**public, **of_files}


def known_machine(device: str, conf: Path) -> KnownMachine:
    """A device by name: of the folder that --conf names, of `conf/`, or a product."""
    own_file = conf / "device" / f"{device}.yaml"
    return KnownMachine(device, read_mapping(own_file) if own_file.is_file() else device_file(device))


def known_memory(known: KnownMachine | None, bandwidth: float | None) -> ChipMemory | None:
    """The memory's bandwidth by --bandwidth in GB/s, or of a known machine's file."""
    if bandwidth is not None:
        require(Annotated[float, Interval(gt=0)], bandwidth, "--bandwidth")
        return ChipMemory(1e9 * bandwidth, "--bandwidth")
    if known is None:
        return None
    bandwidths = [fact.value for fact in facts(known.sheet) if fact.path == "dram.bandwidth"]
    if not bandwidths:
        raise InputError(f"--device {known.name}: its file has no dram.bandwidth; give --bandwidth")
    return ChipMemory(bandwidths[0], f"device {known.name}")


def _shape(path: Path) -> Shape:
    return Shape.parse(yaml.safe_load(path.read_text(encoding="utf-8")))
