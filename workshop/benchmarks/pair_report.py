"""Figures of measured answers: speeds and ratios with intervals, and the emulator's errors on the same cells.

Must not know how an answer is measured or emulated, nor how figures are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import fsum
from statistics import fmean, median
from typing import NamedTuple

from workshop.benchmarks.pair_emulated import Predicted
from workshop.benchmarks.pair_run import NULL, Answer
from workshop.benchmarks.paired import Interval, Paces, Strata, interval, mean_ratio, ratio_of, speed


class Row(NamedTuple):
    """What came out of an arm on a dataset.

    Attributes:
        part: see `pairs.PARTS`.
        dataset: its name.
        arm: the arm.
        prompts: answered ones.
        rounds: answers of a prompt, at most.
        tokens_per_s: measured.
        speed_interval: its interval over prompts.
        acceptance: tokens of a verification.
        floor: share of decoding that reading the target's weights takes; None if the speed is not known.
        hidden: share of drafting during passes of the target; None without drafting.
        idle: share of decoding in which neither processor nor disk worked.
        held_gb: peak GB that the models held.
        ratio: times faster than the part's base; None if no round has both.
        ratio_interval: its interval over prompts.
        predicted: tokens a second by the emulator; None without a calibration.
        verdicts: answers by `equal`, `tie` and `differs`.
    """

    part: str
    dataset: str
    arm: str
    prompts: int
    rounds: int
    tokens_per_s: float
    speed_interval: Interval | None
    acceptance: float
    floor: float | None
    hidden: float | None
    idle: float
    held_gb: float
    ratio: float | None
    ratio_interval: Interval | None
    predicted: float | None
    verdicts: Mapping[str, int]

    @property
    def error(self) -> float | None:
        """Predicted over measured tokens a second, less 1."""
        return None if self.predicted is None else self.predicted / self.tokens_per_s - 1.0


def paces(answers: Sequence[Answer]) -> dict[int, Paces]:
    """An arm's answers by prompt; those of a single token have no pace."""
    by_prompt: dict[int, list[Answer]] = {}
    for answer in answers:
        if answer.decoded:
            by_prompt.setdefault(answer.unit.prompt, []).append(answer)
    return {
        prompt: Paces(fmean(a.decoded for a in own), {a.unit.round: a.decode_s / a.decoded for a in own})
        for prompt, own in sorted(by_prompt.items())
    }


def ratios(arm: Mapping[int, Paces], base: Mapping[int, Paces]) -> list[float]:
    """How many times faster an arm is than its base, on each prompt that both answered in a round."""
    found = [ratio_of(arm[prompt], base[prompt]) for prompt in arm if prompt in base]
    return [ratio for ratio in found if ratio is not None]


def row(
    answers: Sequence[Answer],
    base: Sequence[Answer],
    floor_s: Sequence[float | None],
    predicted: Sequence[Predicted] | None,
    verdicts: Mapping[str, int],
) -> Row | None:
    """The row of an arm's answers to a dataset; None if all of them are single tokens.

    Args:
        answers: the arm's.
        base: those of the part's base.
        floor_s: seconds that reading alone takes of each of the answers, if it is known.
        predicted: the emulated answers by prompt.
        verdicts: the answers by verdict.
    """
    unit, own = answers[0].unit, paces(answers)
    if not own:
        return None
    decode_s = fsum(a.decode_s for a in answers)
    drafting = fsum(a.draft_s for a in answers)
    strata: Strata[Paces] = [list(own.values())]
    against = [ratios(own, paces(base))]
    emulated = [predicted[prompt] for prompt in own] if predicted else []
    known = [seconds for seconds in floor_s if seconds is not None]
    return Row(
        part=unit.part,
        dataset=unit.dataset,
        arm=unit.arm,
        prompts=len(own),
        rounds=max(len(p.rounds) for p in own.values()),
        tokens_per_s=speed(strata),
        speed_interval=interval(strata, speed),
        acceptance=sum(a.decoded for a in answers) / sum(a.passes for a in answers),
        floor=fsum(known) / decode_s if len(known) == len(answers) else None,
        hidden=fsum(a.hidden_s for a in answers) / drafting if drafting else None,
        idle=fsum(a.idle_s for a in answers) / decode_s,
        held_gb=max(a.held_bytes for a in answers) / 1e9,
        ratio=mean_ratio(against) if against[0] else None,
        ratio_interval=interval(against, mean_ratio) if against[0] else None,
        predicted=sum(e.decoded for e in emulated) / fsum(e.decode_s for e in emulated) if emulated else None,
        verdicts=verdicts,
    )


def is_null(row: Row) -> bool:
    """Whether an arm repeats another one."""
    return row.arm.endswith(NULL)


def over_datasets(
    answers: Sequence[Answer], part: str, arm: str, base: str
) -> tuple[float, Interval | None] | None:
    """How many times faster an arm is than the base, over a part's datasets; None without common rounds."""
    by_cell: dict[tuple[str, str], list[Answer]] = {}
    for a in answers:
        if a.unit.part == part:
            by_cell.setdefault((a.unit.dataset, a.unit.arm), []).append(a)
    strata = [
        ratios(paces(by_cell.get((dataset, arm), [])), paces(by_cell.get((dataset, base), [])))
        for dataset in dict.fromkeys(dataset for dataset, _ in by_cell)
    ]
    known = [stratum for stratum in strata if stratum]
    return (mean_ratio(known), interval(known, mean_ratio)) if known else None


class Judged(NamedTuple):
    """How the emulator did on some cells.

    Attributes:
        cells: their number.
        signed: median of predicted over measured speed, less 1.
        absolute: median of its size.
        worst: the largest size.
        ratio: median size of the error of the ratio to the base; None if all cells are the base's.
    """

    cells: int
    signed: float
    absolute: float
    worst: float
    ratio: float | None


def judged(rows: Sequence[Row], bases: Mapping[tuple[str, str], Row]) -> Judged | None:
    """The emulator's errors on rows; None if none of them is predicted."""
    errors = [row.error for row in rows if row.error is not None]
    if not errors:
        return None
    by_ratio = []
    for row in rows:
        base = bases.get((row.part, row.dataset))
        if base and base.arm != row.arm and row.ratio and row.predicted and base.predicted:
            by_ratio.append(abs(row.predicted / base.predicted / row.ratio - 1.0))
    sizes = [abs(error) for error in errors]
    return Judged(
        len(errors), median(errors), median(sizes), max(sizes), median(by_ratio) if by_ratio else None
    )


def order(rows: Sequence[Row], apart: float = 0.0) -> tuple[int, int]:
    """Pairs of arms of a cell that the emulator has in the measured order, and all of them.

    Only pairs whose measured speeds differ by more than `apart`.
    """
    right = count = 0
    for one, other in combinations(rows, 2):
        if (one.part, one.dataset) != (other.part, other.dataset) or not (one.predicted and other.predicted):
            continue
        faster = one.tokens_per_s / other.tokens_per_s
        if max(faster, 1 / faster) - 1.0 > apart:
            count += 1
            right += (faster > 1.0) == (one.predicted > other.predicted)
    return right, count
