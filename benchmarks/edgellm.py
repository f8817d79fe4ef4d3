"""EdgeLLM and its baselines on this machine, with a real model pair and the target streamed from disk.

python benchmarks/edgellm.py                                    Qwen2.5-Coder 1.5B with 0.5B, bf16
python benchmarks/edgellm.py --rounds 3 --tokens 64             more of it
python benchmarks/edgellm.py --methods std_flash,edgellm --set device.pace=null
python benchmarks/edgellm.py --target smollm2_135m --draft smollm2_135m_draft

In each round every method answers the same prompts in a separate process, one after the other, so that ratios
are paired and the peak resident set belongs to one method. `rest` is the share of decoding time in which
neither the processor nor the disk worked: an upper bound of the method's own Python time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from real_pair import add_size, alone, answered, local_cell
from repro.records.provenance import peak_resident_bytes
from repro.scenarios.generation import figures

METHODS = "std_flash,sp,specinfer,edgellm"
DATASETS = ("humaneval", "gsm8k")
OWN = {"edgellm": ["method.memory=0.9"]}
"""Settings by method: EdgeLLM prefetches layers into the remaining budget (sec. III-D)."""

Figures = Mapping[str, float]


def measured(method: str, dataset: str, chosen: argparse.Namespace) -> Figures:
    """One run of a method over one dataset's prompts, after a warm-up."""
    pair = chosen.target, chosen.draft
    done = answered(local_cell(method, dataset, pair, chosen.budget, chosen, *OWN.get(method, [])))
    rounds = [r for g in done.generations for r in g.rounds]
    return {
        "seconds": done.seconds,
        "tokens": float(sum(len(g.tokens) - 1 for g in done.generations)),
        "acceptance": sum(r.emitted for r in rounds) / len(rounds),
        "drafted": sum(r.drafted for r in rounds) / len(rounds),
        "hidden": float(figures.passes(done.generations, done.sessions)["draft_hidden"] or 0.0),
        "rest": done.resting / done.seconds,
        "resident": peak_resident_bytes() / 1e9,
        "budgeted": done.device.memory.peak / 1e9,
    }


def report(found: Mapping[tuple[str, str], Sequence[Figures]], base: str, budget: float) -> Iterator[str]:
    """One line per dataset and method: medians over rounds, ratios paired by round."""
    yield (
        f"{'dataset':<10} {'method':<10} {'s/token':>8} {'over ' + base:>14} {'acceptance':>10} "
        f"{'drafted':>8} {'hidden':>7} {'rest':>6} {'peak RSS':>9}  models held, budget {budget:g} GB"
    )
    for (dataset, method), rounds in found.items():
        pace = [r["seconds"] / r["tokens"] for r in rounds]
        ratios = [
            b["seconds"] / b["tokens"] / own for b, own in zip(found[dataset, base], pace, strict=False)
        ]
        last = rounds[-1]
        rest, resident = median(r["rest"] for r in rounds), max(r["resident"] for r in rounds)
        yield (
            f"{dataset:<10} {method:<10} {median(pace):>8.3f} {median(ratios):>13.2f}x "
            f"{last['acceptance']:>10.2f} {last['drafted']:>8.1f} {last['hidden']:>7.0%} {rest:>6.1%} "
            f"{resident:>6.2f} GB  {last['budgeted']:.2f} GB"
        )


def main() -> None:
    """Run the rounds and print results as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2_5_coder_1_5b")
    parser.add_argument("--draft", default="qwen2_5_coder_0_5b")
    parser.add_argument("--methods", default=METHODS, help="the first is what the others are set against")
    add_size(parser)
    parser.add_argument("--budget", type=float, default=3.0, help="GB that models may hold")
    parser.add_argument("--only", nargs=2, metavar=("METHOD", "DATASET"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        method, dataset = chosen.only
        print(json.dumps(measured(method, dataset, chosen)))
        return
    methods = chosen.methods.split(",")
    found: dict[tuple[str, str], list[Figures]] = {(d, m): [] for d in DATASETS for m in methods}
    for number in range(chosen.rounds):
        for dataset, method in found:
            print(
                f"round {number + 1} of {chosen.rounds}: {method} on {dataset}", file=sys.stderr, flush=True
            )
            found[dataset, method].append(alone(sys.argv[1:], "--only", method, dataset))
    print("\n".join(report(found, methods[0], chosen.budget)))


if __name__ == "__main__":
    main()
