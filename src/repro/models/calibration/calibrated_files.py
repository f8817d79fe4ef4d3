"""A machine's device file and engine files, from measuring it or from what llama-bench wrote of it.

Owns where the files go and what they say of how they were made. `machine_files` measures, `fit` and
`llama_bench` fit, `sections` has the entries.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import yaml
from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.paths import conf_dir, in_checkout
from repro.core.registry import require_choice
from repro.core.typed import require
from repro.device.device_file import facts
from repro.device.op import CPU, GPU
from repro.device.probing.quiet import Quiet, self_test
from repro.models.calibration.fit import fit
from repro.models.calibration.llama_bench import ChipMemory, bench_device, bench_engine, fit_bench, summary
from repro.models.calibration.llama_bench_file import bench_rows, one_setting, read_tests
from repro.models.calibration.machine_files import (
    FULL_EFFORT,
    QUICK_EFFORT,
    device_section,
    engine_sections,
    quiet_kernel,
    say,
    time_probes,
)
from repro.models.calibration.sections import Section, render, require_composing
from repro.models.costs.model_cost import Shape
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


def write_of_file(
    conf: Path,
    name: str | None,
    device: str | None,
    file: Path,
    threads: int | None = None,
    setting: Sequence[str] = (),
    active_parameters: float | None = None,
    bandwidth: float | None = None,
) -> None:
    """Write the files of a machine by what llama-bench wrote of it.

    Args:
        conf: the folder where they go.
        name: of the machine, by default as the file says it; the files' names follow from it, or from the
            file's name.
        device: a file of conf/device with the machine's memory.
        file: what llama-bench wrote as JSON.
        threads: whose tests are used; by default those of the fastest.
        setting: FIELD=VALUE of the tests that are used.
        active_parameters: that a token uses of a mixture of experts.
        bandwidth: of the chip's memory in GB/s.

    Raises:
        InputError: the file cannot be fitted, or a file's place is not free.
    """
    paths = free_paths(conf, name or file.stem, ("device", "engine"))
    memory = known_memory(device, bandwidth, conf)
    tests = one_setting(read_tests(file), setting)
    folders = (conf_dir() / "model" / "shape", conf / "model" / "shape")
    shapes = {path.stem: _shape(path) for folder in folders for path in sorted(folder.glob("*.yaml"))}
    rows = bench_rows(tests, shapes, active_parameters)
    bench = fit_bench(rows, threads)
    for line in summary(bench):
        say(line)
    name = name or tests[0].get("cpu_info" if bench.on == CPU else "gpu_info") or "llama-bench"
    settings = ", ".join([*setting, f"{bench.threads} threads"])
    description = f"llama.cpp {tests[0].get('build_commit') or 'of unknown build'}, {file.name}, {settings}"
    device_facts = bench_device(name, bench, max(row.size for row in rows), file.name, memory)
    engine = bench_engine(f"llama.cpp on {name}", bench, file.name)
    write(paths, {"device": device_facts, "engine": engine}, head(description))


def known_memory(device: str | None, bandwidth: float | None, conf: Path) -> ChipMemory | None:
    """The memory's bandwidth by --bandwidth in GB/s, or of the device file that --device names."""
    if bandwidth is not None:
        require(Annotated[float, Interval(gt=0)], bandwidth, "--bandwidth")
        return ChipMemory(1e9 * bandwidth, "--bandwidth")
    if device is None:
        return None
    files = {path.stem: path for folder in (conf, conf_dir()) for path in (folder / "device").glob("*.yaml")}
    require_choice("--device", device, files)
    device_facts = yaml.safe_load(files[device].read_text(encoding="utf-8"))
    bandwidths = [fact.value for fact in facts(device_facts) if fact.path == "dram.bandwidth"]
    if not bandwidths:
        raise InputError(f"--device {device}: its file has no dram.bandwidth; give --bandwidth")
    return ChipMemory(bandwidths[0], f"conf/device/{device}.yaml")


def _shape(path: Path) -> Shape:
    return Shape.parse(yaml.safe_load(path.read_text(encoding="utf-8")))
