"""LEVER and its baselines on this machine, with a real model pair and the target streamed from disk.

python benchmarks/lever.py                              Qwen2.5-Coder 1.5B with 0.5B, bf16
python benchmarks/lever.py --pair smollm2               SmolLM2-135M with its EAGLE-3 head, fp32
python benchmarks/lever.py --pair smollm2 --draft smollm2_135m_draft
python benchmarks/lever.py --methods flash_ar,edgellm,edgellm:memory=0.9,lever,lever:schedule=serial_cpu
python benchmarks/lever.py --out runs.jsonl             store each run as it ends
python benchmarks/lever.py --report runs.jsonl          print the tables of stored runs, run nothing

In each round every method answers the same prompts of a dataset in a separate process, one after the other;
ratios are paired by prompt and round. Settings of a method are given as `name:setting=value`. All methods
keep the same layers of the target in memory unless a setting says otherwise: EdgeLLM's `memory` prefetches
layers into the remaining budget, as in its own paper.

`rest` is the share of decoding time in which neither the processor nor the disk worked: an upper bound of the
method's own Python time. `tree` is the share between the draft's passes before a verification, in which trees
are built; `ops` is the share between the processor's ops there, which also includes our overhead around
kernels. `floor` is the time of a pass's disk reads alone, at the disk's set pace; `of pass` and `of cycle`
are its shares of a verification and of a cycle.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeVar

from lever_run import BASE, PAIRS, Answer, Run, judged, measured, pair_of
from paired import Strata, spread
from real_pair import add_size, alone
from repro.reports.reference.reference import find, load_cells

METHODS = "flash_ar,chain_sd,edgellm,opt_tree,lever"
DATASETS = "humaneval,mbpp,gsm8k,mt_bench"
PUBLISHED = "lever.fig10.geomean_speedup"
COMPARED = (BASE, "chain_sd", "edgellm")
"""Methods against which the paper publishes a geometric mean."""
TREE = 0.02
"""Largest share of a cycle that building trees may take: this project's own target."""


R = TypeVar("R")
"""A dataclass of one run."""


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """All methods in turn on each dataset, round after round."""
    for number in range(chosen.rounds):
        for dataset in chosen.datasets.split(","):
            for arm in chosen.methods.split(","):
                under_way = f"round {number + 1} of {chosen.rounds}: {arm} on {dataset}"
                print(under_way, file=sys.stderr, flush=True)
                yield Run.parse(alone(sys.argv[1:], "--only", arm, dataset, str(number)))


def noting(found: Iterable[R], file: Path, options: Sequence[str]) -> Iterator[R]:
    """The runs as they come, each also appended to a file that begins with the options."""
    with file.open("x", buffering=1) as out:
        out.write(json.dumps(list(options)) + "\n")
        for run in found:
            out.write(json.dumps(asdict(run)) + "\n")  # type: ignore[call-overload]
            yield run


def ratios(found: Iterable[Any], arm: str, base: str) -> dict[str, list[list[float]]]:
    """Speedup of a method over another, by dataset, prompt and round.

    Answers of a single token have no decoding time and no ratio.
    """
    paces = {(r.dataset, a.id, r.round, r.arm): a.pace for r in found for a in r.answers if a.cycles}
    out: dict[str, dict[str, list[float]]] = {}
    for (dataset, prompt, number, name), pace in paces.items():
        if name == arm and (other := paces.get((dataset, prompt, number, base))):
            out.setdefault(dataset, {}).setdefault(prompt, []).append(other / pace)
    return {dataset: list(prompts.values()) for dataset, prompts in out.items()}


def differing(found: Sequence[Run]) -> Iterator[tuple[Run, Answer, list[int]]]:
    """Lossless answers that differ from the baseline's in the same round, with the baseline's tokens."""
    own = {(r.dataset, r.round, a.id): a.tokens for r in found if r.arm == BASE for a in r.answers}
    for run in (r for r in found if r.lossless):
        for answer in run.answers:
            tokens = own.get((run.dataset, run.round, answer.id), answer.tokens)
            if answer.tokens != tokens:
                yield run, answer, tokens


def by_method(found: Sequence[Run]) -> Iterator[str]:
    """One line per dataset and method, totals over totals, and each method's geometric means."""
    yield (
        f"{'dataset':<10} {'method':<24} {'s/token':>8} {'tokens/s':>8} {'accept':>7} {'drafted':>8} "
        f"{'rest':>6} {'tree':>6} {'ops':>6} {'floor':>8} {'of pass':>8} {'of cycle':>9} {'peak RSS':>9} "
        f"{'held':>8}"
    )
    geometric: dict[str, list[tuple[float, float]]] = {}
    for dataset, arm in dict.fromkeys((r.dataset, r.arm) for r in found):
        mine = [r for r in found if (r.dataset, r.arm) == (dataset, arm)]
        answers = [a for r in mine for a in r.answers if a.cycles]
        if not answers:
            yield f"{dataset:<10} {arm:<24} every answer was a single token"
            continue
        cycles, tokens = sum(a.cycles for a in answers), sum(len(a.tokens) - 1 for a in answers)
        seconds, drafted = sum(a.seconds for a in answers), sum(a.drafted for a in answers)
        geometric.setdefault(arm, []).append((seconds / tokens, tokens / cycles))
        resident, held = max(r.resident for r in mine), max(r.budgeted for r in mine)
        yield (
            f"{dataset:<10} {arm:<24} {speed(seconds / tokens, tokens / cycles)} {drafted / cycles:>8.1f} "
            f"{shares(mine, seconds, cycles)} {resident:>6.2f} GB {held:>5.2f} GB"
        )
    for arm, figures in geometric.items():
        pace, accepted = map(geometric_mean, zip(*figures, strict=True))
        yield f"{'geomean':<10} {arm:<24} {speed(pace, accepted)}"


def speed(pace: float, accepted: float) -> str:
    """Seconds per token, tokens per second, acceptance length."""
    return f"{pace:>8.3f} {1 / pace:>8.2f} {accepted:>7.2f}"


def shares(mine: Sequence[Run], seconds: float, cycles: int) -> str:
    """Shares of a method's time by activity; `-` where a share is undefined."""
    tree, ops, floor = (total(getattr(r.time, what) for r in mine) for what in ("tree", "ops", "floor"))
    rest, verifying = sum(r.time.resting for r in mine), sum(r.time.verifying for r in mine)
    built = "".join(f"{'-':>7}" if spent is None else f" {spent / seconds:>6.1%}" for spent in (tree, ops))
    if floor is None:
        return f"{rest / seconds:>6.1%}{built} {'-':>8} {'-':>8} {'-':>9}"
    reads = f"{floor / cycles:>6.3f} s {floor / verifying:>8.0%} {floor / seconds:>9.0%}"
    return f"{rest / seconds:>6.1%}{built} {reads}"


def total(parts: Iterable[float | None]) -> float | None:
    """The sum; `None` if any part is `None`."""
    out = 0.0
    for part in parts:
        if part is None:
            return None
        out += part
    return out


def construction(found: Sequence[Run]) -> Iterator[str]:
    """The share of LEVER's time spent building trees, with the limit aimed at."""
    for arm in dict.fromkeys(r.arm for r in found if method(r.arm) == "lever"):
        mine = [r for r in found if r.arm == arm]
        seconds = sum(a.seconds for r in mine for a in r.answers)
        if seconds:
            spent = total(r.time.tree for r in mine) or 0.0
            yield f"{arm}: building trees took {spent / seconds:.2%} of all cycles, aim under {TREE:.0%}"


def speedups(found: Sequence[Run]) -> Iterator[str]:
    """Speedup of LEVER over each method that the paper compares with, by dataset and as geometric mean."""
    cells, arms = load_cells(), list(dict.fromkeys(r.arm for r in found))
    yield f"{'':<10} {'times faster':<40} {'mean':>6}  {'95% interval':<14} {'least to most':<14} pairs"
    for arm in (a for a in arms if method(a) == "lever"):
        for base in (a for a in arms if method(a) in COMPARED):
            what, strata = f"{arm} over {base}", ratios(found, arm, base)
            yield from (line(dataset, what, [prompts]) for dataset, prompts in strata.items())
            if strata:
                aim = find(cells, f"{PUBLISHED}.{method(base)}").value_low
                yield f"{line('geomean', what, list(strata.values()))}  aim {aim:.2f}"


def line(dataset: str, what: str, strata: Strata) -> str:
    """One line with a ratio and its spread."""
    s = spread(strata)
    interval, ends = f"{s.low:.2f} to {s.high:.2f}", f"{s.least:.2f} to {s.most:.2f}"
    return f"{dataset:<10} {what:<40} {s.mean:>5.2f}x  {interval:<14} {ends:<14} {s.pairs:>5}"


def method(arm: str) -> str:
    """The method of `name:setting=value`."""
    return arm.split(":")[0]


def lossless(found: Sequence[Run], options: Sequence[str]) -> tuple[list[str], bool]:
    """Which lossless answers equal the baseline's, where others diverge, and whether rounding explains it."""
    parted = list(differing(found))
    count = sum(len(r.answers) for r in found if r.lossless and r.arm != BASE)
    lines, sound = [f"{count - len(parted)} of {count} lossless answers have the tokens of {BASE}"], True
    for dataset in dict.fromkeys(run.dataset for run, *_ in parted):
        here = [(run.arm, answer, own) for run, answer, own in parted if run.dataset == dataset]
        asked = json.dumps([(answer.id, answer.tokens, own) for _, answer, own in here])
        verdicts = alone(options, "--judge", dataset, asked)
        for (arm, answer, _), (position, margin, tie) in zip(here, verdicts, strict=True):
            why = "a tie, which rounding decides" if tie else "NO TIE"
            lines.append(f"  {arm}, {dataset} {answer.id}: token {position}, {margin:.3g} logits, {why}")
            sound = sound and tie
    return lines, sound


def notes(found: Sequence[Run]) -> Iterator[str]:
    """Remarks on the results, each with the methods it applies to."""
    said: dict[str, dict[str, None]] = {}
    for run in found:
        for note in run.notes:
            said.setdefault(note, {})[run.arm] = None
    yield from (f"{', '.join(arms)}: {note}" for note, arms in said.items())


def show(found: Sequence[Run], options: Sequence[str]) -> None:
    """Print all tables; exit with an error if a lossless method's answer is wrong."""
    chosen = arguments(options)
    target, draft, budget = pair_of(chosen)
    print(
        f"{target} with {draft}, models may hold {budget:g} GB; {chosen.prompts} prompts a dataset, "
        f"{chosen.tokens} tokens, {1 + max(r.round for r in found)} rounds\n"
    )
    for part in (by_method(found), construction(found), speedups(found), notes(found)):
        print("\n".join([*part, ""]))
    lines, sound = lossless(found, options)
    print("\n".join(lines))
    if not sound:
        sys.exit("lever: an answer is not the target's own")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", choices=sorted(PAIRS), default="qwen")
    parser.add_argument("--draft", help="another file of conf/model than the pair's")
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--methods", default=METHODS, help=f"with {BASE}, whose tokens are the others' check")
    add_size(parser)
    parser.add_argument("--budget", type=float, help="GB that models may hold, if not the pair's")
    parser.add_argument("--out", type=Path, help="a new file that takes a line of JSON a run")
    parser.add_argument("--report", type=Path, help="such a file, to print and not to run")
    parser.add_argument("--only", nargs=3, metavar=("METHOD", "DATASET", "ROUND"), help=argparse.SUPPRESS)
    parser.add_argument("--judge", nargs=2, metavar=("DATASET", "ANSWERS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    if BASE not in chosen.methods.split(","):
        parser.error(f"--methods is {chosen.methods}; {BASE} must be among them")
    return chosen


def main() -> None:
    """Run the rounds, or a child's part of them, or print stored runs."""
    options = sys.argv[1:]
    chosen = arguments(options)
    if chosen.only:
        arm, dataset, number = chosen.only
        print(json.dumps(asdict(measured(arm, dataset, int(number), chosen))))
    elif chosen.judge:
        print(json.dumps(judged(chosen.judge[0], json.loads(chosen.judge[1]), chosen)))
    elif chosen.report:
        begun, *lines = map(json.loads, chosen.report.read_text().splitlines())
        show([Run.parse(line) for line in lines], begun)
    else:
        found = runs(chosen)
        show(list(noting(found, chosen.out, options) if chosen.out else found), options)


if __name__ == "__main__":
    main()
