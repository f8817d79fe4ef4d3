"""Medusa and Ghidorah on this machine, with all weights in memory, compared with sequential decoding.

python benchmarks/ghidorah.py                               SmolLM2-135M with its Medusa heads, fp32
python benchmarks/ghidorah.py --methods sequential,medusa:width=4,ghidorah:divided=false
python benchmarks/ghidorah.py --rounds 3 --tokens 64        more of it
python benchmarks/ghidorah.py --out runs.jsonl              store each run as it ends
python benchmarks/ghidorah.py --report runs.jsonl           print the tables of stored runs, run nothing

In each round every method answers the same prompts of a dataset in a separate process, one after the other;
ratios are paired by prompt and round. Settings of a method are given as `name:setting=value:...`.

`floor` is the time of a pass that only reads the target's weights once at full memory bandwidth; `of pass`
and `of cycle` are its shares of a pass and of a whole cycle with drafting. A CPU computes a wide pass more
slowly than it reads the weights, so its share is small.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lever import line, noting, ratios, speed
from lever_run import Answer, noted
from real_pair import add_size, alone, answered, local_cell
from repro.models.forward.exactness import divergence
from repro.models.transformer.gemm_rates import read_bandwidth

BASE = "sequential"
METHODS = f"{BASE},medusa:width=4,medusa:width=8,medusa:width=16,ghidorah:divided=false"
DATASETS = "mt_bench,gsm8k,mbpp,humaneval"
FOOTPRINT = 1 << 29
"""Bytes read to measure memory bandwidth: more than the caches hold."""


@dataclass(frozen=True)
class Run:
    """One method's answers to one dataset's prompts in one round.

    Attributes:
        arm: the method with its settings.
        passes: number of target passes in the decode spans.
        passing: seconds of those passes.
        weights: bytes that a pass reads.
        bandwidth: memory bandwidth in bytes per second, measured just before.
    """

    arm: str
    dataset: str
    round: int
    lossless: bool
    answers: list[Answer]
    passes: int
    passing: float
    weights: float
    bandwidth: float
    notes: list[str]

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Run:
        """A run from its JSON object."""
        return cls(**{**given, "answers": [Answer(**answer) for answer in given["answers"]]})


def measured(arm: str, dataset: str, number: int, chosen: argparse.Namespace) -> Run:
    """One run of a method over one dataset's prompts, after a warm-up."""
    bandwidth = read_bandwidth(torch.device("cpu"), FOOTPRINT, seconds=1.0)
    cell = cell_of(arm, dataset, chosen)
    done = answered(cell)
    windows = done.windows
    decoding = [p for p in done.sessions["target"].passes if any(a <= p.start < b for a, b in windows)]
    answers = [
        Answer(
            g.request.id,
            g.tokens,
            g.ended - g.rounds[0].start if g.rounds else 0.0,
            len(g.rounds),
            sum(r.drafted for r in g.rounds),
        )
        for g in done.generations
    ]
    return Run(
        arm=arm,
        dataset=dataset,
        round=number,
        lossless=cell.method.lossless,
        answers=answers,
        passes=len(decoding),
        passing=sum(p.end - p.start for p in decoding),
        weights=float(cell.target.decoder().weight_bytes),
        bandwidth=bandwidth,
        notes=list(noted(done)),
    )


def cell_of(arm: str, dataset: str, chosen: argparse.Namespace) -> Any:
    """The cell of the method `name:setting=value:...`."""
    method, *own = arm.split(":")
    pair = chosen.target, chosen.draft
    return local_cell(method, dataset, pair, chosen.budget, chosen, *[f"method.{setting}" for setting in own])


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """All methods in turn on each dataset, round after round."""
    for number in range(chosen.rounds):
        for dataset in chosen.datasets.split(","):
            for arm in chosen.methods.split(","):
                under_way = f"round {number + 1} of {chosen.rounds}: {arm} on {dataset}"
                print(under_way, file=sys.stderr, flush=True)
                yield Run.parse(alone(sys.argv[1:], "--only", arm, dataset, str(number)))


def by_method(found: Sequence[Run]) -> Iterator[str]:
    """One line per dataset and method, totals over totals."""
    best = max(run.bandwidth for run in found)
    yield f"memory reads {best / 1e9:.1f} GB/s at best"
    yield (
        f"{'dataset':<10} {'method':<28} {'s/token':>8} {'tokens/s':>8} {'accept':>7} {'pass':>9} "
        f"{'floor':>9} {'of pass':>8} {'of cycle':>9}"
    )
    for dataset, arm in dict.fromkeys((run.dataset, run.arm) for run in found):
        mine = [run for run in found if (run.dataset, run.arm) == (dataset, arm)]
        answers = [a for run in mine for a in run.answers if a.cycles]
        if not answers:
            yield f"{dataset:<10} {arm:<28} every answer was a single token"
            continue
        cycles, tokens = sum(a.cycles for a in answers), sum(len(a.tokens) - 1 for a in answers)
        seconds, floor = sum(a.seconds for a in answers), mine[0].weights / best
        a_pass = sum(run.passing for run in mine) / sum(run.passes for run in mine)
        yield (
            f"{dataset:<10} {arm:<28} {speed(seconds / tokens, tokens / cycles)} {1e3 * a_pass:>6.1f} ms "
            f"{1e3 * floor:>6.1f} ms {floor / a_pass:>8.0%} {floor * cycles / seconds:>9.0%}"
        )


def speedups(found: Sequence[Run]) -> Iterator[str]:
    """Speedup of every method over sequential decoding, by dataset and as geometric mean."""
    yield f"{'':<10} {'times faster':<40} {'mean':>6}  {'95% interval':<14} {'least to most':<14} pairs"
    for arm in dict.fromkeys(run.arm for run in found if run.arm != BASE):
        strata, what = ratios(found, arm, BASE), f"{arm} over {BASE}"
        yield from (line(dataset, what, [prompts]) for dataset, prompts in strata.items())
        if strata:
            yield line("geomean", what, list(strata.values()))


def differing(found: Sequence[Run]) -> list[tuple[Run, Answer, list[int]]]:
    """Lossless answers that differ from the baseline's in the same round, with the baseline's tokens."""
    own = {(r.dataset, r.round, a.id): a.tokens for r in found if r.arm == BASE for a in r.answers}
    pairs = [(run, a, own.get((run.dataset, run.round, a.id))) for run in found for a in run.answers]
    return [(run, a, tokens) for run, a, tokens in pairs if run.lossless and tokens and tokens != a.tokens]


def lossless(found: Sequence[Run], options: Sequence[str]) -> tuple[list[str], bool]:
    """Which answers equal the baseline's, where others diverge, and whether rounding explains all of it."""
    parted = differing(found)
    count = sum(len(run.answers) for run in found if run.lossless and run.arm != BASE)
    lines, sound = [f"{count - len(parted)} of {count} lossless answers have the tokens of {BASE}"], True
    for run, answer, own in parted:
        asked = json.dumps([answer.id, answer.tokens, own])
        position, margin, tie = alone(options, "--judge", run.dataset, asked)
        why = "a tie, which rounding decides" if tie else "NO TIE"
        lines.append(f"  {run.arm}, {run.dataset} {answer.id}: token {position}, {margin:.3g} logits, {why}")
        sound = sound and tie
    return lines, sound


def judged(dataset: str, name: str, ours: list[int], own: list[int], chosen: argparse.Namespace) -> Any:
    """Where an answer diverges from the baseline's: token, logit difference, whether that is a tie."""
    cell = cell_of(BASE, dataset, chosen)
    (prompt,) = (request.prompt for request in cell.requests if request.id == name)
    return divergence(prompt, ours, own, cell.target.network(), cell.target.config.dtype)


def show(found: Sequence[Run], options: Sequence[str]) -> None:
    """Print all tables; exit with an error if a lossless method's answer is wrong."""
    chosen = arguments(options)
    rounds = 1 + max(run.round for run in found)
    print(f"{chosen.target} with {chosen.draft}; {chosen.prompts} prompts a dataset, {rounds} rounds\n")
    notes = dict.fromkeys(f"{run.arm}: {note}" for run in found for note in run.notes)
    for part in (by_method(found), speedups(found), notes):
        print("\n".join([*part, ""]))
    lines, sound = lossless(found, options)
    print("\n".join(lines))
    if not sound:
        sys.exit("ghidorah: an answer is not the target's own")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="smollm2_135m")
    parser.add_argument("--draft", default="smollm2_135m_medusa")
    parser.add_argument("--datasets", default=DATASETS)
    parser.add_argument("--methods", default=METHODS, help=f"with {BASE}, whose tokens are the others' check")
    add_size(parser)
    parser.add_argument("--budget", type=float, default=4.0, help="GB that models may hold")
    parser.add_argument("--out", type=Path, help="a new file that takes a line of JSON a run")
    parser.add_argument("--report", type=Path, help="such a file, to print and not to run")
    parser.add_argument("--only", nargs=3, metavar=("METHOD", "DATASET", "ROUND"), help=argparse.SUPPRESS)
    parser.add_argument("--judge", nargs=2, metavar=("DATASET", "ANSWER"), help=argparse.SUPPRESS)
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
        name, ours, own = json.loads(chosen.judge[1])
        print(json.dumps(judged(chosen.judge[0], name, ours, own, chosen)))
    elif chosen.report:
        begun, *lines = map(json.loads, chosen.report.read_text().splitlines())
        show([Run.parse(noted_line) for noted_line in lines], begun)
    else:
        found = runs(chosen)
        show(list(noting(found, chosen.out, options) if chosen.out else found), options)


if __name__ == "__main__":
    main()
