"""Figures of measured answers, as frames: speeds and ratios with intervals, and the emulator's errors.

Must not know how an answer is measured or emulated, nor how figures are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import fsum
from typing import Any, NamedTuple

import pandas as pd

from workshop.benchmarks.alternating import Interval, Strata, interval, mean_ratio
from workshop.benchmarks.pair_emulated import Predicted
from workshop.benchmarks.pair_run import NULL, Answer

CELL = ["part", "dataset", "arm"]
COLUMNS = {
    "prompts": "answered ones",
    "rounds": "answers of a prompt, at most",
    "tokens_per_s": "measured",
    "speed_interval": "its interval over prompts",
    "acceptance": "tokens of a verification",
    "floor": "share of decoding that reading the target's weights takes; none if the speed is not known",
    "hidden": "share of drafting during passes of the target; none without drafting",
    "idle": "share of decoding in which neither processor nor disk worked",
    "held_gb": "peak GB that the models held",
    "ratio": "times faster than the part's base; none if no round has both",
    "ratio_interval": "its interval over prompts",
    "predicted": "tokens a second by the emulator; none without a calibration",
    "verdicts": "answers by `equal`, `tie` and `differs`",
}
"""What a row has beside its part, dataset and arm; these are the columns of `rows.csv`."""


class Paces(NamedTuple):
    """An arm's answers to one prompt.

    Attributes:
        tokens: decoded ones of an answer, the mean over rounds.
        pace: seconds a token, the median over rounds.
    """

    tokens: float
    pace: float


def speed(strata: Strata[Paces]) -> float:
    """Tokens a second: totals over totals, of medians over rounds."""
    prompts = [prompt for stratum in strata for prompt in stratum]
    return fsum(p.tokens for p in prompts) / fsum(p.tokens * p.pace for p in prompts)


def frame(
    answers: Sequence[Answer], floors_s: Sequence[float | None], verdicts: Sequence[str]
) -> pd.DataFrame:
    """A row for each answer, with its verdict and the seconds that reading alone takes, if they are known."""
    lines = [{**vars(answer.unit), **vars(answer), "decoded": answer.decoded} for answer in answers]
    return pd.DataFrame(lines).assign(floor_s=pd.Series(floors_s, dtype=float), verdict=[*verdicts])


def paces(answers: pd.DataFrame) -> pd.DataFrame:
    """Seconds a token by prompt and round; those of a single token have none."""
    several = answers[answers["decoded"] > 0]
    return several.assign(pace=several["decode_s"] / several["decoded"]).pivot(
        index="prompt", columns="round", values="pace"
    )


def ratios(arm: pd.DataFrame, base: pd.DataFrame) -> list[float]:
    """How many times faster an arm is than its base on each prompt: the median over rounds that both have."""
    return [*(paces(base) / paces(arm)).median(axis=1).dropna()]


def row(
    answers: pd.DataFrame, base: pd.DataFrame, predicted: Sequence[Predicted] | None
) -> dict[str, Any] | None:
    """`COLUMNS` of an arm's answers to a dataset; None if all of them are single tokens.

    Args:
        answers: the arm's.
        base: those of the part's base.
        predicted: the emulated answers by prompt.
    """
    by_round = paces(answers)
    if by_round.empty:
        return None
    tokens = answers[answers["decoded"] > 0].groupby("prompt")["decoded"].mean()
    strata = [[Paces(tokens[prompt], pace) for prompt, pace in by_round.median(axis=1).items()]]
    against = [ratios(answers, base)]
    emulated = [predicted[prompt] for prompt in by_round.index] if predicted else []
    emulated_s = fsum(answer.decode_s for answer in emulated)
    decode_s, draft_s = fsum(answers["decode_s"]), fsum(answers["draft_s"])
    return {
        "prompts": len(by_round),
        "rounds": int(by_round.count(axis=1).max()),
        "tokens_per_s": speed(strata),
        "speed_interval": interval(strata, speed),
        "acceptance": answers["decoded"].sum() / answers["passes"].sum(),
        "floor": fsum(answers["floor_s"]) / decode_s if answers["floor_s"].notna().all() else None,
        "hidden": fsum(answers["hidden_s"]) / draft_s if draft_s else None,
        "idle": fsum(answers["idle_s"]) / decode_s,
        "held_gb": answers["held_bytes"].max() / 1e9,
        "ratio": mean_ratio(against) if against[0] else None,
        "ratio_interval": interval(against, mean_ratio) if against[0] else None,
        "predicted": sum(answer.decoded for answer in emulated) / emulated_s if emulated else None,
        "verdicts": answers["verdict"].value_counts().to_dict(),
    }


def rows(
    answers: pd.DataFrame, bases: Mapping[str, str], predicted: Mapping[tuple[str, str, str], Any]
) -> pd.DataFrame:
    """The figures of each part, dataset and arm, in the order of the answers.

    Beside `COLUMNS` it has `is_base`, `error`, predicted over measured speed less 1, and `emulated_ratio`.

    Args:
        answers: all of them.
        bases: the base's arm by part.
        predicted: emulated answers of each part, dataset and arm; None without a calibration.
    """
    lines = []
    for (part, dataset, arm), of_arm in answers.groupby(CELL, sort=False):
        of_base = answers[answers[CELL].eq([part, dataset, bases[part]]).all(axis=1)]
        if figures := row(of_arm, of_base, predicted[part, dataset, arm]):
            lines.append({"part": part, "dataset": dataset, "arm": arm, **figures})
    found = pd.DataFrame(lines, columns=[*CELL, *COLUMNS]).astype({"predicted": float, "ratio": float})
    found["is_base"] = found["arm"] == found["part"].map(bases)
    found["error"] = found["predicted"] / found["tokens_per_s"] - 1
    of_base = found[found["is_base"]].set_index(CELL[:2])["predicted"]
    return found.join(of_base.rename("of_base"), on=CELL[:2]).assign(
        emulated_ratio=lambda all_rows: all_rows["predicted"] / all_rows.pop("of_base")
    )


def over_datasets(
    answers: pd.DataFrame, part: str, arm: str, base: str
) -> tuple[float, Interval | None] | None:
    """How many times faster an arm is than the base, over a part's datasets; None without common rounds."""
    of_part = answers[answers["part"] == part]
    by_dataset = [group for _, group in of_part.groupby("dataset", sort=False)]
    strata = [ratios(group[group["arm"] == arm], group[group["arm"] == base]) for group in by_dataset]
    common = [stratum for stratum in strata if stratum]
    return (mean_ratio(common), interval(common, mean_ratio)) if common else None


class Judged(NamedTuple):
    """How the emulator did on some cells.

    Attributes:
        cells: their number.
        signed: median of predicted over measured speed, less 1.
        absolute: median of its size.
        worst: the largest size.
        ratio: median size of the error of the ratio to the base; NaN if all cells are the base's.
    """

    cells: int
    signed: float
    absolute: float
    worst: float
    ratio: float


def judged(figures: pd.DataFrame) -> Judged | None:
    """The emulator's errors on rows; None if none of them is predicted."""
    errors, others = figures["error"].dropna(), figures[~figures["is_base"]]
    if errors.empty:
        return None
    of_ratios = (others["emulated_ratio"] / others["ratio"] - 1).abs()
    sizes = errors.abs()
    return Judged(len(errors), errors.median(), sizes.median(), sizes.max(), of_ratios.median())


def order(figures: pd.DataFrame, apart: float = 0.0) -> tuple[int, int]:
    """Pairs of arms of a cell that the emulator has in the measured order, and all of them.

    Only pairs whose measured speeds differ by more than `apart`.
    """
    right = count = 0
    for _, group in figures.dropna(subset="predicted").groupby(CELL[:2]):
        for a, b in combinations(group.itertuples(), 2):
            faster = a.tokens_per_s / b.tokens_per_s
            if max(faster, 1 / faster) - 1.0 > apart:
                count += 1
                right += (faster > 1.0) == (a.predicted > b.predicted)
    return right, count


def is_null(figures: pd.DataFrame) -> pd.Series[bool]:
    """Which rows repeat another arm."""
    return figures["arm"].str.endswith(NULL)
