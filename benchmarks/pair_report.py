"""The report of stored runs: where the time of each method went, and paired ratios with their spread.

Must not know how a run is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean

from pair_run import Run
from paired import Strata, interval_words, spread
from repro.reports.reference.reference import find, load_cells

WIDE = 28
"""Columns of a method with its settings."""
TOTALS = ("decode_seconds", "decode_tokens", "target_calls")


def ratios(found: Iterable[Run], arm: str, base: str) -> dict[str, list[list[float]]]:
    """Speedup of a method over another, by dataset, prompt and round."""
    paces = {(r.dataset, p, r.round, r.arm): pace for r in found for p, pace in r.paces.items()}
    out: dict[str, dict[str, list[float]]] = {}
    for (dataset, prompt, number, name), pace in paces.items():
        if name == arm and (other := paces.get((dataset, prompt, number, base))):
            out.setdefault(dataset, {}).setdefault(prompt, []).append(other / pace)
    return {dataset: list(prompts.values()) for dataset, prompts in out.items()}


def report(found: Sequence[Run], base: str, against: Sequence[str], published: str) -> Iterator[str]:
    """The whole report, line by line.

    Args:
        found: the runs.
        base: the method that every other one is set against.
        against: methods that the paper's own method, `published`'s paper, is set against as well.
        published: id of the paper's geometric means in `conf/reference/cells.csv`, without the method's name
            at its end; "" if the paper has none.
    """
    yield from by_method(found)
    yield ""
    yield from speedups(found, base, against, published)
    remarks: dict[str, dict[str, None]] = {}
    for run in found:
        for note in run.notes:
            remarks.setdefault(note, {})[run.arm] = None
    yield ""
    yield from (f"{', '.join(arms)}: {note}" for note, arms in remarks.items())
    checked = [run for run in found if "ties" in run.record.values]
    count, ties = int(total(checked, "prompts")), int(total(checked, "ties"))
    yield f"{count - ties} of {count} lossless answers are the target's own, {ties} leave it at a tie"


def by_method(found: Sequence[Run]) -> Iterator[str]:
    """One line per dataset and method, totals over totals, and each method's geometric means."""
    yield (
        f"{'dataset':<10} {'method':<{WIDE}} {'s/token':>8} {'tokens/s':>8} {'accept':>7} {'drafted':>8} "
        f"{'hidden':>7} {'idle':>6} {'between':>8} {'floor':>9} {'of pass':>8} {'of cycle':>9} "
        f"{'peak RSS':>9} {'held':>8}"
    )
    means: dict[str, list[tuple[float, float]]] = {}
    for dataset, arm in dict.fromkeys((run.dataset, run.arm) for run in found):
        mine = [run for run in found if (run.dataset, run.arm) == (dataset, arm)]
        seconds, tokens, calls = (total(mine, figure) for figure in TOTALS)
        if not calls:
            yield f"{dataset:<10} {arm:<{WIDE}} every answer was a single token"
            continue
        means.setdefault(arm, []).append((seconds / tokens, tokens / calls))
        resident, held = max(run.resident for run in mine) / 1e9, max(run.held for run in mine) / 1e9
        yield (
            f"{dataset:<10} {arm:<{WIDE}} {speed(*means[arm][-1])} {shares(mine)} "
            f"{resident:>6.2f} GB {held:>5.2f} GB"
        )
    for arm, figures in means.items():
        yield f"{'geomean':<10} {arm:<{WIDE}} {speed(*map(geometric_mean, zip(*figures, strict=True)))}"


def speed(pace: float, accepted: float) -> str:
    """Seconds per token, tokens per second, acceptance length."""
    return f"{pace:>8.3f} {1 / pace:>8.2f} {accepted:>7.2f}"


def shares(mine: Sequence[Run]) -> str:
    """Draft tokens a verification, then shares of decoding time by activity; `-` where one is undefined."""
    seconds, _, calls = (total(mine, figure) for figure in TOTALS)
    drafted = sum(one["drafted"] for run in mine for one in run.rounds) / calls
    drafting = total(mine, "draft_seconds")
    hidden = sum(run.figure("draft_seconds") * run.figure("draft_hidden") for run in mine)
    bound = f"{'-':>9} {'-':>8} {'-':>9}"
    floors = [run.floor for run in mine if run.floor is not None]
    if len(floors) == len(mine):
        least, passing = sum(floors), sum(run.passing for run in mine)
        bound = f"{1e3 * least / calls:>6.1f} ms {least / passing:>8.0%} {least / seconds:>9.0%}"
    between = sum(run.between for run in mine) / seconds
    return (
        f"{drafted:>8.1f} {f'{hidden / drafting:.0%}' if drafting else '-':>7} "
        f"{sum(run.idle for run in mine) / seconds:>6.1%} {between:>8.1%} {bound}"
    )


def total(mine: Iterable[Run], figure: str) -> float:
    """The sum of a figure over runs."""
    return sum(run.figure(figure) for run in mine)


def speedups(found: Sequence[Run], base: str, against: Sequence[str], published: str) -> Iterator[str]:
    """Each method over the base, and the paper's own method over those that the paper compares it with."""
    arms = list(dict.fromkeys(run.arm for run in found))
    paper = published.split(".")[0]
    pairs = [(arm, base) for arm in arms if arm != base]
    pairs += [
        (arm, other) for arm in arms if arm.split(":")[0] == paper for other in arms if other in against
    ]
    yield f"{'':<10} {'times faster':<40} {'mean':>6}  {'95% interval':<14} {'least to most':<14} pairs"
    for arm, other in pairs:
        strata, what = ratios(found, arm, other), f"{arm} over {other}"
        yield from (line(dataset, what, [prompts]) for dataset, prompts in strata.items())
        if not strata:
            continue
        aim = ""
        if published and arm.split(":")[0] == paper:
            aim = f"  published {find(load_cells(), f'{published}.{other}').value_low:.2f}"
        yield line("geomean", what, list(strata.values())) + aim


def line(dataset: str, what: str, strata: Strata) -> str:
    """One line with a ratio and its spread."""
    s = spread(strata)
    ends = f"{s.least:.2f} to {s.most:.2f}"
    return f"{dataset:<10} {what:<40} {s.mean:>5.2f}x  {interval_words(s):<14} {ends:<14} {s.pairs:>5}"
