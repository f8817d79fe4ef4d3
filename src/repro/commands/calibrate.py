"""Measure this machine and write a device file and an engine file, so that it can be emulated.

    repro calibrate                 conf/device/calibrated.yaml and conf/engine/calibrated.yaml
    repro calibrate --name "My board" --conf FOLDER   FOLDER/device/my_board.yaml, and its engine
    repro calibrate --quick         seconds, for a look: caches are not emptied
    repro calibrate --device cuda   the GPU in place of the CPU
    repro calibrate --from-llama-bench FILE.json   any machine, from what llama-bench -o json wrote
        --setting n_depth=0 --threads 4 --active-parameters 3.3e9 --device bcm2712 (or --bandwidth 17.1)

A busy machine is refused; --busy measures it anyway, and the files say so.
docs/local.md explains the figures.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

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
from repro.models.calibration.llama_bench import ChipMemory, bench_device, bench_engine, fit_bench, summary
from repro.models.calibration.llama_bench_file import bench_rows, one_setting, read_tests
from repro.models.calibration.machine_files import FULL, QUICK, calibrate, spread_of
from repro.models.calibration.machine_speed import quiet_kernel
from repro.models.calibration.written import rendered, require_composing
from repro.models.costs.model_cost import Shape
from repro.records.build_cache import cache_root
from repro.records.record import write_atomically

MARK = "# Written by `repro calibrate`"
FORMER_MARK = "# Written by scripts/calibrate.py"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def require_quiet(busy: bool) -> Quiet:
    """The self-test's outcome; InputError for a busy machine, unless `busy` allows it."""
    found = self_test(quiet_kernel())
    if not found.is_quiet and not busy:
        raise InputError(f"this machine is too busy to measure: {found.sentence}; stop them, or add --busy")
    return found


def require_device(kind: str) -> str:
    """The processor that is measured; InputError if there is none of its kind."""
    require_choice("--device", kind, ("cpu", "cuda"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU, and torch sees none; choose --device cpu")
    return GPU if kind == "cuda" else CPU


def card() -> str:
    """The GPU's name and the version of CUDA that torch was built with."""
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def free_places(conf: Path, slug: str, endings: Sequence[str]) -> dict[str, Path]:
    """Where the device file and the engine files go, if nothing or an earlier calibration is there."""
    paths = {"device": conf / "device" / f"{slug}.yaml"}
    paths |= {f"engine{ending}": conf / "engine" / f"{slug}{ending}.yaml" for ending in endings}
    for path in paths.values():
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}; --conf names one with device/ and engine/")
        if path.exists() and not path.read_text(encoding="utf-8").startswith((MARK, FORMER_MARK)):
            raise InputError(f"{path} was not written by `repro calibrate`; choose another --name or --conf")
    return paths


def head(how: str, quiet: Quiet | None = None, quick: bool = False) -> list[str]:
    """The comment lines that a file begins with."""
    lines = [f"{MARK} on {datetime.now(UTC):%Y-%m-%d}: {how}."]
    if quiet is not None and not quiet.is_quiet:
        lines.append(f"# The machine was busy: {quiet.sentence}.")
    if quick:
        lines.append(
            "# Quick figures: weights stay in caches, so that rates are too high. Run it without --quick."
        )
    return lines


def write(
    paths: Mapping[str, Path], device: Mapping[str, Any], engines: Mapping[str, Any], lines: Sequence[str]
) -> None:
    """Write the files, after trying whether they compose."""
    texts = {"device": rendered(device, lines)}
    texts |= {f"engine{ending}": rendered(engine, lines) for ending, engine in engines.items()}
    read = {name: yaml.safe_load(text) for name, text in texts.items()}
    require_composing(read["device"], [read[name] for name in texts if name != "device"])
    for name, text in texts.items():
        write_atomically(paths[name], text)
        print(paths[name])
    folder = paths["device"].parents[1]
    found_by = "" if folder == conf_dir() else f" --config-dir {shlex.quote(str(folder))}"
    print(f"use them with device={paths['device'].stem} engine={paths['device'].stem}{found_by}")


def from_here(chosen: argparse.Namespace, slug: str, conf: Path) -> None:
    on = require_device(chosen.device or "cpu")
    effort = QUICK if chosen.quick else FULL
    paths = free_places(conf, slug, ("",) if on == GPU else ("", "_streamed"))
    quiet = require_quiet(chosen.busy or chosen.quick)
    say(quiet.sentence)
    measured = calibrate(chosen.name or "Calibrated", on, effort, chosen.scratch, say)
    where = card() if on == GPU else f"{torch.get_num_threads()} threads"
    how = f"torch {torch.__version__}, {where}; fit: {spread_of(measured.costs.errors)}"
    for note in measured.notes:
        say(note)
    lines = [*head(how, quiet, chosen.quick), *(f"# {note}." for note in measured.notes)]
    write(paths, measured.device, measured.engines, lines)


def from_llama_bench(chosen: argparse.Namespace, slug: str, conf: Path) -> None:
    paths = free_places(conf, slug, ("",))
    memory = known_memory(chosen, conf)
    tests = one_setting(read_tests(chosen.from_llama_bench), chosen.setting)
    folders = (conf_dir() / "model" / "shape", conf / "model" / "shape")
    shapes = {path.stem: _shape(path) for folder in folders for path in sorted(folder.glob("*.yaml"))}
    rows = bench_rows(tests, shapes, chosen.active_parameters)
    found = fit_bench(rows, chosen.threads)
    for line in summary(found):
        say(line)
    source = chosen.from_llama_bench.name
    name = chosen.name or tests[0].get("cpu_info" if found.on == CPU else "gpu_info") or "llama-bench"
    device = bench_device(name, found, max(row.size for row in rows), source, memory)
    engine = bench_engine(f"llama.cpp on {name}", found, source)
    settings = ", ".join([*chosen.setting, f"{found.threads} threads"])
    how = f"llama.cpp {tests[0].get('build_commit') or 'of unknown build'}, {source}, {settings}"
    write(paths, device, {"": engine}, head(how))


def known_memory(chosen: argparse.Namespace, conf: Path) -> ChipMemory | None:
    """The memory's bandwidth by --bandwidth, or of the device file that --device names."""
    if chosen.bandwidth is not None:
        require(Annotated[float, Interval(gt=0)], chosen.bandwidth, "--bandwidth")
        return ChipMemory(1e9 * chosen.bandwidth, "--bandwidth")
    if chosen.device is None:
        return None
    files = {path.stem: path for folder in (conf, conf_dir()) for path in (folder / "device").glob("*.yaml")}
    require_choice("--device", chosen.device, files)
    device = yaml.safe_load(files[chosen.device].read_text(encoding="utf-8"))
    known = [fact for fact in facts(device) if fact.path == "dram.bandwidth"]
    if not known:
        raise InputError(f"--device {chosen.device}: its file has no dram.bandwidth; give --bandwidth")
    return ChipMemory(known[0].value, f"conf/device/{chosen.device}.yaml")


def _shape(path: Path) -> Shape:
    return Shape.parse(yaml.safe_load(path.read_text(encoding="utf-8")))


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "repro calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--name", help="of the machine, as tables show it; the files are named after it")
    parser.add_argument(
        "--conf", type=Path, help="folder with device/ and engine/; the checkout's conf, or ./conf"
    )
    parser.add_argument("--quick", action="store_true", help="seconds, for a look; rates are too high")
    parser.add_argument("--busy", action="store_true", help="measure although the machine is busy")
    parser.add_argument(
        "--device", help="processor to measure, cpu or cuda; of a file: one of conf/device with its memory"
    )
    parser.add_argument(
        "--scratch", type=Path, default=cache_root() / "calibrate", help="folder on the disk to measure"
    )
    parser.add_argument("--from-llama-bench", type=Path, metavar="FILE.json", help="measure nothing here")
    of_file = parser.add_argument_group("with --from-llama-bench")
    settings = (
        of_file.add_argument("--threads", type=int, help="whose tests are used (those of the fastest)"),
        of_file.add_argument(
            "--setting", action="append", default=[], metavar="FIELD=VALUE", help="whose tests are used"
        ),
        of_file.add_argument(
            "--active-parameters", type=float, metavar="N", help="that a token uses of a mixture of experts"
        ),
        of_file.add_argument("--bandwidth", type=float, metavar="GB/S", help="that the chip's memory gives"),
    )
    chosen = parser.parse_args(given)
    if not chosen.from_llama_bench:
        for setting in settings:
            if getattr(chosen, setting.dest) not in (None, []):
                parser.error(f"{setting.option_strings[0]} goes with --from-llama-bench")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    default = chosen.from_llama_bench.stem if chosen.from_llama_bench else "calibrated"
    slug = re.sub(r"[^a-z0-9]+", "_", (chosen.name or default).lower()).strip("_") or "calibrated"
    conf = chosen.conf or (conf_dir() if in_checkout() else Path("conf"))
    try:
        if conf == Path("conf"):
            for group in ("device", "engine"):
                (conf / group).mkdir(parents=True, exist_ok=True)
        if chosen.from_llama_bench:
            from_llama_bench(chosen, slug, conf)
        else:
            from_here(chosen, slug, conf)
    except InputError as wrong:
        sys.exit(f"calibrate: {wrong}")
    return 0
