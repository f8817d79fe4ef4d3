"""The papers' methods on this machine by wall clock, with real model pairs.

python -m workshop.benchmarks.pairs --estimate        what there is to do, and how long it takes; runs nothing
python -m workshop.benchmarks.pairs --minutes 10      goes on where it stopped, for ten minutes
python -m workshop.benchmarks.pairs --parts smollm2_memory,ghidorah --rounds 1 --prompts 2 --tokens 24
python -m workshop.benchmarks.pairs --report results/real  the page of what is stored; needs no quiet machine

A unit is one answer: a prompt of an arm (a method with its settings) in a round. It is stored as it ends, so
the same command goes on after any stop. All parts have their first round before the second begins; in a round
every arm answers a prompt before the next prompt, cheap arms first. `#null` is an arm a second time: what its
ratio to the first is beside 1 is noise. The part `calibration` times probes, from which `--report` predicts
all of it by the emulator.

A busy machine is refused, and a unit during which others took a few percent of a core is thrown away and
measured again; `--busy` keeps it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from repro.core.bounds import Count
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.core.registry import require_choice
from repro.core.typed import require
from repro.records.provenance import peak_resident_bytes
from workshop.benchmarks.other_load import Load, OtherLoad
from workshop.benchmarks.pair_parts import CALIBRATION, GROUPS, PARTS, PROBING, Plan, Stored, append, stored
from workshop.benchmarks.pair_run import NULL, Unit, opened_arms
from workshop.validation.this_machine.measuring import MachineBench

LIMIT = 0.1
"""Cores that others may keep busy before a unit."""
MEANWHILE = 0.05
"""Cores that they may keep busy during one; in a short one at least `SLACK_S`."""
SLACK_S = 0.03
PAUSE_S, LOOK_S = 0.5, 3.0
"""Seconds that others are watched before a unit, and before the first one of a process."""
THROWS = 3
"""Times that a unit is thrown away before the machine counts as busy."""
BUSY, OVER = 3, 4
"""Exit codes of a child: the machine is busy; the time is over."""


def estimated(unit: Unit, known: Stored) -> float:
    """Seconds of a unit, its pause included: as its arm took before, else by passes of the target."""
    if unit.part == CALIBRATION:
        return 40.0 if unit.arm.endswith("resident") else 70.0
    same = [a for a in known.answers if (a.unit.part, a.unit.arm) == (unit.part, unit.arm) and a.decoded > 0]
    if same:
        pace = fmean(a.decode_s / a.decoded for a in same)
        return PAUSE_S + fmean(a.prefill_s for a in same) + pace * (unit.asked - 1)
    part = PARTS[unit.part]
    passes = 1.0 if unit.arm.removesuffix(NULL) == part.arms[0] else part.drafted
    return PAUSE_S + part.pass_s * (2.0 + unit.asked * passes)


def opening(part: str, known: Stored) -> float:
    """Seconds until all arms of a part are open, warmed up and prepared."""
    before = [seconds for name, seconds in known.opened if name == part]
    return fmean(before) if before else 10.0 if part == CALIBRATION else 15.0 + 20 * PARTS[part].pass_s


def groups(units: Sequence[Unit]) -> list[tuple[str, list[Unit]]]:
    """Units that one process measures: of a round, a part and a dataset."""
    return [(key[1], list(own)) for key, own in groupby(units, key=lambda u: (u.round, u.part, u.dataset))]


def estimate(plan: Plan, known: Stored) -> Iterator[str]:
    """What is left to do, by part, and how long it takes."""
    left = [unit for unit in plan.units() if unit not in known.done]
    whole = 0.0
    for name in plan.parts:
        own = [unit for unit in left if unit.part == name]
        seconds = sum(estimated(unit, known) for unit in own)
        seconds += sum(opening(part, known) for part, _ in groups(own))
        whole += seconds
        rounds = {
            number: sum(estimated(u, known) for u in own if u.round == number)
            for number in range(plan.rounds)
        }
        each = ", ".join(f"round {number + 1}: {took / 60:.1f}" for number, took in rounds.items() if took)
        yield f"{name:<18} {len(own):>4} units {seconds / 60:>6.1f} minutes ({each})"
    basis = (
        f"{len(known.answers)} stored answers" if known.answers else "a pass's usual time, nothing is stored"
    )
    yield f"{'all that is left':<18} {len(left):>4} units {whole / 60:>6.1f} minutes, from {basis}"


def disturbing(seconds: float) -> Load | None:
    """Watch others for some seconds, and longer if they are busy; what they take if they stay so."""
    for watched in (seconds, LOOK_S):
        others = OtherLoad()
        time.sleep(watched)
        if (load := others.load()).cores <= LIMIT:
            return None
    return load


def measure_group(job: Mapping[str, Any]) -> int:
    """Measure units of one part and dataset in this process; 0, `BUSY` or `OVER`."""
    units, file, busy = [Unit(*unit) for unit in job["units"]], Path(job["file"]), bool(job["busy"])
    plan, known = Plan(**job["plan"]), stored(file)
    if not busy and (load := disturbing(LOOK_S)):
        return refuse(load)
    costs = {unit: estimated(unit, known) for unit in units}
    with ExitStack() as opened:
        start = time.monotonic()
        measure = opened_measure(units, plan, opened)
        seconds, resident = round(time.monotonic() - start, 1), peak_resident_bytes() / 1e9
        append(file, json.dumps({"opened": units[0].part, "seconds": seconds}))
        say(f"opened in {seconds} s, {resident:.1f} GB")
        units.sort(key=lambda unit: (unit.prompt, costs[unit]))
        for number, unit in enumerate(units, start=1):
            for _ in range(THROWS):
                if time.time() + costs[unit] > job["until"]:
                    return OVER
                if not busy and (load := disturbing(PAUSE_S)):
                    return refuse(load)
                others, start = OtherLoad(), time.monotonic()
                line, outcome = measure(unit)
                took, seconds = others.load(), time.monotonic() - start
                where = (
                    f"{unit.part} {unit.dataset} round {unit.round + 1} prompt {unit.prompt + 1} {unit.arm}"
                )
                if busy or took.cores <= max(MEANWHILE, SLACK_S / seconds):
                    append(file, json.dumps({**line, "others": round(took.cores, 3)}))
                    say(f"{where}: {outcome} in {seconds:.1f} s ({number} of {len(units)})")
                    break
                thrown = {"thrown": list(vars(unit).values()), "others": round(took.cores, 3)}
                append(file, json.dumps(thrown | {"most": took.most}))
                say(f"{where}: thrown away, {took.sentence}")
            else:
                return refuse(took)
    return 0


Measure = Callable[[Unit], tuple[Mapping[str, Any], str]]
"""Measures a unit; what is stored of it, and its outcome in words."""


def opened_measure(units: Sequence[Unit], plan: Plan, opened: ExitStack) -> Measure:
    """Open what measures these units, all of one part and dataset."""
    part, dataset = units[0].part, units[0].dataset
    if part == CALIBRATION:
        bench = MachineBench(replace(PROBING, threads=torch.get_num_threads()), say)

        def calibrated(unit: Unit) -> tuple[Mapping[str, Any], str]:
            (group,) = bench.measure([GROUPS[unit.arm]])
            return {"probe": asdict(group)}, "calibrated"

        return calibrated
    arms = list(dict.fromkeys(unit.arm for unit in units))
    say(f"{part}, {dataset}, round {units[0].round + 1}: opening {', '.join(arms)}")
    arms_open = opened_arms(arms, dataset, plan.settings(part), opened)

    def answered(unit: Unit) -> tuple[Mapping[str, Any], str]:
        answer = arms_open[unit.arm].answer(unit)
        return (
            answer.fields(),
            f"{answer.decoded} tokens, {answer.decode_s / max(1, answer.decoded):.3f} s each",
        )

    return answered


def refuse(load: Load) -> int:
    """Say why nothing is measured."""
    say(f"pairs: this machine is too busy to measure: {load.sentence}; stop them, or add --busy")
    return BUSY


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def run(plan: Plan, file: Path, minutes: float | None, busy: bool) -> int:
    """Measure what is left, each group of units in a process of its own; 0 or `BUSY`.

    A process frees its memory, and what a part's models hold is not another's.
    """
    until = time.time() + 60 * minutes if minutes else float("inf")
    require_same_head(file, plan)
    while left := [unit for unit in plan.units() if unit not in (known := stored(file)).done]:
        part, units = groups(left)[0]
        if time.time() + opening(part, known) > until:
            break
        needed, there = 5.0 if part == CALIBRATION else PARTS[part].memory_gb, available_gb()
        if there < needed:
            raise InputError(
                f"{part} takes {needed} GB of memory, and {there:.1f} are free; end other programs"
            )
        job: dict[str, Any] = {"units": [list(vars(unit).values()) for unit in units], "plan": asdict(plan)}
        job |= {"file": str(file), "busy": busy, "until": until if minutes else 1e12}
        code = subprocess.run(
            [sys.executable, "-m", "workshop.benchmarks.pairs", "--job", json.dumps(job)]
        ).returncode
        if code == OVER:
            break
        if code:
            return code
    say(f"{len(left)} units are left" + ("; the same command goes on with them" if left else ""))
    return 0


def require_same_head(file: Path, plan: Plan) -> None:
    """Begin a file of runs; InputError if it began with other settings, which would be mixed."""
    head = {"threads": torch.get_num_threads(), "torch": torch.__version__, "overrides": list(plan.overrides)}
    head["processor"] = processor_name()
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        append(file, json.dumps({"head": head}))
    for name, value in stored(file).head.items():
        if head[name] != value:
            raise InputError(
                f"{file} began with {name} {value!r}, and now it is {head[name]!r}; choose another --out"
            )


def available_gb() -> float:
    """GB of memory that programs can still get."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(1024e-9 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def processor_name() -> str:
    """The processor's name, as the system says it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("overrides", nargs="*", help="settings of all cells, as of `python -m repro`")
    parser.add_argument(
        "--parts", default=",".join((CALIBRATION, *PARTS)), help="which ones, first ones first"
    )
    parser.add_argument("--datasets", default="humaneval,gsm8k")
    parser.add_argument("--methods", default="", help="arms in place of the parts': name:setting=value:...")
    parser.add_argument("--prompts", type=int, default=5, help="of each dataset (5)")
    parser.add_argument(
        "--tokens", type=int, default=48, help="of an answer (48); 8 where each token reads all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parser.add_argument("--estimate", action="store_true", help="say how long it takes, and run nothing")
    parser.add_argument("--busy", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--out", type=Path, default=project_root() / "outputs" / "real" / "runs.jsonl")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write the page of what is stored")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_intermixed_args(given)


def plan_of(chosen: argparse.Namespace) -> Plan:
    """What is asked for; InputError for a part that there is not, or a count below 1."""
    for name in (parts := chosen.parts.split(",")):
        require_choice("part", name, (CALIBRATION, *PARTS))
    for name in ("prompts", "tokens", "rounds"):
        require(Count, getattr(chosen, name), f"--{name}")
    methods = [arm for arm in chosen.methods.split(",") if arm]
    sizes = chosen.prompts, chosen.tokens, chosen.rounds
    return Plan(parts, chosen.datasets.split(","), *sizes, methods, chosen.overrides)


def main(given: Sequence[str]) -> int:
    """Run the command; 2 for an input that does not exist, 3 for a machine that is busy."""
    chosen = arguments(given)
    if chosen.job:
        return measure_group(json.loads(chosen.job))
    try:
        plan = plan_of(chosen)
        if chosen.report:
            from workshop.benchmarks.pair_page import write_page

            write_page(chosen.report, plan, stored(chosen.out), chosen.out.with_suffix(".emulated.json"))
            return 0
        print("\n".join(estimate(plan, stored(chosen.out))), flush=True)
        return 0 if chosen.estimate else run(plan, chosen.out, chosen.minutes, chosen.busy)
    except InputError as wrong:
        print(f"pairs: {wrong}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
