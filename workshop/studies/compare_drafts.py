"""Compare two drafts' acceptance length on the same prompts, from the records of finished cells.

    python -m repro -m name=drafts method=chain_sd model@target=smollm2_135m prompts=10 \\
        model@draft=smollm2_135m_eagle3,smollm2_135m_draft dataset=humaneval,mbpp,gsm8k,mt_bench
    python -m workshop.studies.compare_drafts --experiment drafts \\
        --drafts "SmolLM2-135M EAGLE-3" "SmolLM2-135M draft"

Owns the pairing of prompts and the interval; acceptance itself is `repro.metrics.acceptance`'s definition:
tokens emitted over target verifications, totals over totals.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from repro.core.digits import json_text
from repro.core.errors import InputError
from repro.records.record import write_atomically
from repro.records.results import Results, open_results

TOTAL = "all"


@dataclass(frozen=True)
class Prompt:
    """Both drafts' results on one prompt: tokens emitted and verifications, `(first, second)` each."""

    tokens: tuple[int, int]
    verifications: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """Acceptance lengths over a set of prompts, and the 95% interval of first minus second."""

    prompts: int
    first: float
    second: float
    low: float
    high: float


def by_request(rounds: Sequence[Mapping[str, object]]) -> dict[str, tuple[int, int]]:
    """Tokens and verifications of each request; rounds without a target pass are skipped."""
    found: dict[str, tuple[int, int]] = {}
    for each in rounds:
        tokens, verifications = found.get(str(each["request"]), (0, 0))
        if each["rows"]:
            found[str(each["request"])] = (tokens + int(str(each["emitted"])), verifications + 1)
    return found


def paired(store: Results, experiment: str, drafts: Sequence[str], method: str) -> dict[str, list[Prompt]]:
    """The prompts that both drafts answered, by dataset.

    Raises:
        InputError: a draft has no finished cell, or two for a dataset; the two answered other prompts.
    """
    found: dict[str, dict[str, dict[str, tuple[int, int]]]] = {draft: {} for draft in drafts}
    for record in store.all(experiment):
        draft, dataset = record.labels.get("draft", ""), record.labels.get("dataset", "")
        if not record.done or record.labels.get("method") != method or draft not in found:
            continue
        if dataset in found[draft]:
            raise InputError(f"{experiment}: two finished cells of {method} with {draft!r} on {dataset}")
        found[draft][dataset] = by_request(store.rounds(record.key))
    first, second = (found[draft] for draft in drafts)
    if not first or first.keys() != second.keys():
        raise InputError(f"{experiment}: {drafts[0]!r} has {sorted(first)}, {drafts[1]!r} {sorted(second)}")
    for dataset in first:
        if first[dataset].keys() != second[dataset].keys():
            raise InputError(f"{experiment}: the two drafts answered different prompts of {dataset}")
    return {
        dataset: [
            Prompt(*zip(numbers, second[dataset][request], strict=True))
            for request, numbers in first[dataset].items()
        ]
        for dataset in sorted(first)
    }


def lengths(prompts: Sequence[Prompt]) -> tuple[float, float]:
    """Acceptance length of both drafts, totals over totals."""
    first, second = (
        sum(prompt.tokens[which] for prompt in prompts)
        / sum(prompt.verifications[which] for prompt in prompts)
        for which in (0, 1)
    )
    return first, second


def compared(groups: Sequence[Sequence[Prompt]], draws: int, seed: int) -> Comparison:
    """All prompts of these groups together; the bootstrap draws prompts within each group."""
    chance, differences = random.Random(seed), []
    for _ in range(draws):
        drawn = [prompt for group in groups for prompt in chance.choices(group, k=len(group))]
        first, second = lengths(drawn)
        differences.append(first - second)
    differences.sort()
    low, high = (differences[round(share * (draws - 1))] for share in (0.025, 0.975))
    everything = [prompt for group in groups for prompt in group]
    return Comparison(len(everything), *lengths(everything), low, high)


def table(drafts: Sequence[str], results: Mapping[str, Comparison]) -> str:
    """The results as a Markdown table."""
    head = f"| prompts | {drafts[0]} | {drafts[1]} | difference | 95% interval |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {name} ({one.prompts}) | {one.first:.2f} | {one.second:.2f} | {one.first - one.second:+.2f} "
        f"| {one.low:+.2f} to {one.high:+.2f} |\n"
        for name, one in results.items()
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and write the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--results", type=Path, default=Path("outputs/results"), help="results folder (default %(default)s)")
    add("--experiment", default="drafts", help="name of the cells' experiment (default %(default)s)")
    add("--drafts", nargs=2, required=True, metavar="NAME", help="as records name them")
    add("--method", default="chain_sd", help="(default %(default)s)")
    add("--draws", type=int, default=10_000, help="of the bootstrap (default %(default)s)")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    groups = paired(open_results(args.results), args.experiment, args.drafts, args.method)
    results = {name: compared([group], args.draws, args.seed) for name, group in groups.items()}
    results[TOTAL] = compared(list(groups.values()), args.draws, args.seed)
    print(table(args.drafts, results))
    if args.out:
        content = {
            "drafts": args.drafts,
            "method": args.method,
            "draws": args.draws,
            "seed": args.seed,
            "acceptance_length": {name: asdict(one) for name, one in results.items()},
        }
        write_atomically(args.out, json_text(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
