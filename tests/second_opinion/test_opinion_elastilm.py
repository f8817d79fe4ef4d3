"""A second opinion on ElastiLM's Fig. 14 and on its mean gain: from the requests' verdicts alone.

Knows: which requests were answered rightly and in time, and that one row of a dataset is asked on three
phones and at three mixes of objectives, so that the resampling is of rows, jointly over everything. Knows
nothing of deciders, costs or models.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from committed_results import cells, line, printed, rounds

FIGURE, CLAIMS, CLAIM = "elastilm/fig14", "elastilm/claims", "elastilm.fig14.gain_avg"
COLUMNS = {"0.0": "even", "0.25": "relaxed", "-0.25": "tight"}
BLANK = "pfs"
"""Its models are not here: nobody answered."""


def verdicts(name: str) -> dict[tuple[str, str], list[dict[str, np.ndarray]]]:
    """The requests of each service and mix of objectives, one entry a phone."""
    stored, found = rounds(FIGURE), defaultdict(list)
    for cell in cells(FIGURE):
        if cell["labels"]["service"] != BLANK:
            found[cell["labels"]["service"], cell["labels"]["alpha"]].append(stored[cell["key"]])
    return found


def test_accuracies_and_gains_follow_from_the_verdicts() -> None:
    table, mean = printed(FIGURE), dict[tuple[str, str], float]()
    for (service, alpha), phones in verdicts(FIGURE).items():
        assert len(phones) == 3
        mean[service, alpha] = float(
            np.mean([100 * np.mean(phone["right"].astype(float)) for phone in phones])
        )
        assert mean[service, alpha] == pytest.approx(table[service, COLUMNS[alpha]], rel=1e-9)
        if alpha == "0.0":
            met = [phone["met"].astype(float) for phone in phones]
            late_is_wrong = [phone["right"].astype(float) * ok for phone, ok in zip(phones, met, strict=True)]
            assert 100 * np.mean(met) == pytest.approx(table[service, "met"], rel=1e-9)
            assert 100 * np.mean(late_is_wrong) == pytest.approx(table[service, "accuracy_in_time"], rel=1e-9)
    for (service, alpha), accuracy in mean.items():
        gain = mean["elastilm", alpha] - accuracy
        assert gain == pytest.approx(table[service, f"{COLUMNS[alpha]}_gain"], abs=1e-7)


def joint_gain() -> tuple[float, tuple[float, float]]:
    """The mean gain over baselines and mixes in points, and its 95% interval with rows resampled jointly."""
    found = verdicts(FIGURE)
    baselines = sorted({service for service, _ in found} - {"elastilm"})
    pairs = [(service, alpha) for service in baselines for alpha in COLUMNS]
    rows = sorted(
        {identity.rsplit("/", 1)[0] for phones in found.values() for p in phones for identity in p["id"]}
    )
    place = {row: number for number, row in enumerate(rows)}
    right, asked = {key: np.zeros(len(rows)) for key in found}, {key: np.zeros(len(rows)) for key in found}
    for key, phones in found.items():
        for phone in phones:
            at = [place[identity.rsplit("/", 1)[0]] for identity in phone["id"]]
            np.add.at(right[key], at, phone["right"].astype(float))
            np.add.at(asked[key], at, 1)
    drawn = np.random.default_rng(1).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=4000)

    def gains(counts: np.ndarray) -> np.ndarray:
        accuracy = {key: 100 * (counts @ right[key]) / (counts @ asked[key]) for key in found}
        return np.mean(
            [accuracy["elastilm", alpha] - accuracy[service, alpha] for service, alpha in pairs], axis=0
        )

    low, high = np.percentile(gains(drawn), [2.5, 97.5])
    return float(gains(np.ones((1, len(rows))))[0]), (float(low), float(high))


def test_the_mean_gain_has_the_interval_of_a_joint_resampling() -> None:
    """To a point: the draws differ, ends that are averages of ends do by several."""
    claim, (mean, (low, high)) = line(CLAIMS, CLAIM), joint_gain()
    assert float(claim["ours"]) == pytest.approx(mean, rel=1e-8)  # a mean of differences of ten digits
    message = f"jointly [{low:.1f}, {high:.1f}], the table says [{claim['low']}, {claim['high']}]"
    assert float(claim["low"]) == pytest.approx(low, abs=1.0), message
    assert float(claim["high"]) == pytest.approx(high, abs=1.0), message


def test_times_follow_from_levels_and_prompts_not_from_who_decides() -> None:
    """Within a phone and a service, a request that reads more tokens at the same level takes longer."""
    for (service, _), phones in verdicts(FIGURE).items():
        for phone in phones:
            order = np.lexsort((phone["read"], phone["model_level"]))
            level, read, ttft = (phone[name][order] for name in ("model_level", "read", "ttft"))
            same = level[1:] == level[:-1]
            unswitched = (phone["switch"][order][1:] == 0) & (phone["switch"][order][:-1] == 0)
            gain = ttft[1:] - ttft[:-1]
            fewer = same & unswitched & (read[1:] > read[:-1])
            assert np.all(gain[fewer] > 0), f"{service}: more tokens took no longer"
