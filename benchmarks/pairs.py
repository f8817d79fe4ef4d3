"""The methods of a paper on this machine, with a real model pair.

python benchmarks/pairs.py --preset lever          Qwen2.5-Coder 1.5B with 0.5B, bf16, streamed from disk
python benchmarks/pairs.py --preset lever_small    SmolLM2-135M with its EAGLE-3 head, fp32, streamed
python benchmarks/pairs.py --preset edgellm        Qwen2.5-Coder 1.5B with 0.5B, bf16, streamed
python benchmarks/pairs.py --preset ghidorah       SmolLM2-135M with its Medusa heads, fp32, in memory
python benchmarks/pairs.py --preset lever prompts=4 max_tokens=64 device.pace=null    (any setting)
python benchmarks/pairs.py --preset lever --methods flash_ar,edgellm:memory=0.9,lever --rounds 3
python benchmarks/pairs.py --preset lever --out runs.jsonl     store each run as it ends
python benchmarks/pairs.py --report runs.jsonl                 report stored runs, run nothing

Each run is a cell `device=local_cpu`, whose record is stored, in a process of its own. In each round every
method answers the same prompts of a dataset one after the other; ratios are paired by prompt and round.

`hidden` is the share of drafting during passes of the target. `idle` is the share of decoding in which
neither the processor nor the disk worked: an upper bound of the method's own Python time. `between` is the
share in which no model's pass ran: trees are built and answers accepted then. `floor` is the time that
reading alone takes for a pass: of the disk at its set pace, or of all weights once at the memory's measured
speed; `of pass` and `of cycle` are its shares of the target's passes (above 100% where layers are read ahead
between passes) and of all decoding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pair_report import report
from pair_run import Run, measured


class Preset(NamedTuple):
    """What a paper compares.

    Attributes:
        target: a file of conf/model.
        draft: a file of conf/model.
        budget: GB that models may hold; less than both models take if the target is streamed.
        methods: the methods, the base of all ratios first.
        datasets: the datasets.
        against: other methods that the paper's own method is set against.
        published: see `report`.
    """

    target: str
    draft: str
    budget: float
    methods: str
    datasets: str
    against: tuple[str, ...] = ()
    published: str = ""


ALL = "humaneval,mbpp,gsm8k,mt_bench"
MEDUSA = "sequential,medusa:width=4,medusa:width=8,medusa:width=16,ghidorah:divided=false"
LEVER = Preset(
    "qwen2_5_coder_1_5b",
    "qwen2_5_coder_0_5b",
    3.0,
    "flash_ar,chain_sd,edgellm,opt_tree,lever",
    ALL,
    ("chain_sd", "edgellm"),
    "lever.fig10.geomean_speedup",
)
PRESETS = {
    "lever": LEVER,
    "lever_small": LEVER._replace(target="smollm2_135m", draft="smollm2_135m_eagle3", budget=0.5),
    "edgellm": Preset(*LEVER[:3], "std_flash,sp,specinfer,edgellm:memory=0.9", "humaneval,gsm8k"),
    "ghidorah": Preset("smollm2_135m", "smollm2_135m_medusa", 4.0, MEDUSA, ALL),
}
"""EdgeLLM's `memory` prefetches layers into the remaining budget (sec. III-D)."""


def settings(preset: Preset, own: Sequence[str]) -> list[str]:
    """Overrides of a preset's cells; a user's own come last."""
    models = [f"model@target={preset.target}", f"model@draft={preset.draft}"]
    size = ["prompts=2", "max_tokens=32", f"device.dram.budget.value={preset.budget}"]
    return [*models, *size, *own]


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """All methods in turn on each dataset, round after round, each in a process of its own.

    A process has its own peak resident set, which then belongs to one method.
    """
    overrides = settings(PRESETS[chosen.preset], chosen.overrides)
    for number in range(chosen.rounds):
        for dataset in chosen.datasets.split(","):
            for arm in chosen.methods.split(","):
                under_way = f"round {number + 1} of {chosen.rounds}: {arm} on {dataset}"
                print(under_way, file=sys.stderr, flush=True)
                asked = json.dumps([arm, dataset, number, overrides])
                child = [sys.executable, __file__, "--cell", asked]
                done = subprocess.run(child, stdout=subprocess.PIPE, text=True, encoding="utf-8")
                if done.returncode:
                    sys.exit(f"pairs: {arm} on {dataset} failed, as told above")
                yield Run.parse(json.loads(done.stdout.splitlines()[-1]))


def noting(found: Iterator[Run], file: Path, preset: str) -> Iterator[Run]:
    """The runs as they come, each also appended to a file that begins with the preset's name."""
    with file.open("x", buffering=1, encoding="utf-8") as out:
        out.write(json.dumps(preset) + "\n")
        for run in found:
            out.write(run.to_json() + "\n")
            yield run


def stored(file: Path) -> tuple[str, list[Run]]:
    """A file's preset and runs."""
    preset, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return preset, [Run.parse(line) for line in lines]


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; methods and datasets of the preset unless others are given."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--preset", choices=PRESETS)
    parser.add_argument("overrides", nargs="*", help="settings as of `python -m repro`")
    parser.add_argument("--methods", help="name:setting=value:..., the base of all ratios first")
    parser.add_argument("--datasets")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a new file that takes a line of JSON a run")
    parser.add_argument("--report", type=Path, help="such a file, to print and not to run")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    chosen = parser.parse_intermixed_args(given)
    if not (chosen.preset or chosen.report or chosen.cell):
        parser.error(f"no preset; choices: {', '.join(PRESETS)}")
    if chosen.preset:
        chosen.methods = chosen.methods or PRESETS[chosen.preset].methods
        chosen.datasets = chosen.datasets or PRESETS[chosen.preset].datasets
    return chosen


def main() -> None:
    """Run the rounds and print the report, or one cell for a parent, or the report of stored runs."""
    chosen = arguments(sys.argv[1:])
    if chosen.cell:
        arm, dataset, number, overrides = json.loads(chosen.cell)
        print(measured(arm, dataset, number, overrides).to_json())
        return
    if chosen.report:
        name, found = stored(chosen.report)
    else:
        name, coming = chosen.preset, runs(chosen)
        found = list(noting(coming, chosen.out, name) if chosen.out else coming)
    preset = PRESETS[name]
    print("\n".join(report(found, found[0].arm, preset.against, preset.published)))


if __name__ == "__main__":
    main()
