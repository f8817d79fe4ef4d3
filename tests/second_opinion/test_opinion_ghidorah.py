"""A second opinion on Ghidorah's Fig. 9, its means and Table I: from rounds and from the board's numbers.

Knows: a round's tokens and times; that a processor computes in tiles of rows; that a pass is a layer after
the other and an output projection. Knows nothing of how trees are searched or of how work is divided, only
that two processors are no faster than both together.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from committed_results import at, cells, layer_weights, machine, model, printed, rounds

FIGURE, MEANS, TABLES = "ghidorah/fig9", "ghidorah/fig9_mean", ("ghidorah/table1", "ghidorah/table1_vicuna")
METHODS = ("medusa", "medusa_em", "ghidorah")
ROWS = {"mt_bench", "gsm8k", "mbpp", "humaneval"}


def test_speedups_and_their_means_follow_from_the_rounds() -> None:
    stored, table = rounds(FIGURE), printed(FIGURE)
    seconds, accepted = dict[tuple[str, str, str], float](), dict[tuple[str, str, str], float]()
    for cell in cells(FIGURE):
        own, labels = stored[cell["key"]], cell["labels"]
        place = labels["dataset"], labels["width"], labels["method"]
        seconds[place] = np.sum(own["end"] - own["start"]) / np.sum(own["emitted"])
        accepted[place] = np.sum(own["emitted"]) / np.sum(own["rows"] > 0)
        if labels["method"] != "sequential":
            assert set(own["rows"]) == {int(labels["width"])}, "every verification has the width's rows"
        assert np.all((own["emitted"] == own["accepted"] + 1) | (own["emitted"] == own["accepted"]))
    speed = {place: seconds[*place[:2], "sequential"] / taken for place, taken in seconds.items()}
    widths = sorted({width for _, width, _ in seconds}, key=int)
    assert ({row for row, _, _ in seconds}, widths) == (ROWS, ["4", "8", "16", "32", "64"])
    for row in ROWS:
        for width in widths:
            own = f"{row} / {width}"
            for method in METHODS:
                assert speed[row, width, method] == pytest.approx(table[own, method], rel=1e-6)
            assert accepted[row, width, "ghidorah"] == pytest.approx(
                table[own, "acceptance_length"], rel=1e-9
            )
            parallel = speed[row, width, "ghidorah"] / speed[row, width, "medusa"]
            assert parallel == pytest.approx(table[own, "parallel"], rel=1e-6)
        for other in ("medusa", "medusa_em"):
            ratios = [speed[row, width, "ghidorah"] / speed[row, width, other] for width in widths]
            assert np.mean(ratios) == pytest.approx(printed(MEANS)[row, f"over_{other}"], rel=1e-6)


@pytest.mark.parametrize("name", TABLES)
def test_acceptance_by_width_follows_from_the_rounds(name: str) -> None:
    stored, table, found = rounds(name), printed(name), dict[tuple[str, int], float]()
    for cell in cells(name):
        own, labels = stored[cell["key"]], cell["labels"]
        width = int(labels["width"])
        assert set(own["rows"]) == {width}
        found[labels["dataset"], width] = np.sum(own["emitted"]) / len(own["emitted"])
        assert found[labels["dataset"], width] == pytest.approx(
            table[labels["dataset"], f"w{width}"], rel=1e-9
        )
    assert all(found[row, 1] == 1 for row in ROWS), "a root alone gives one token"
    assert all(1 <= length <= width for (_, width), length in found.items())


def test_a_pass_takes_its_padded_rows_computing_and_both_processors_no_less_than_together() -> None:
    """One GPU: operations of the padded rows and launches, to 1%. Divided: no faster than both together."""
    for cell in cells(FIGURE):
        values, labels = cell["values"], cell["labels"]
        shape, on = model(labels["target"]), machine(labels["device"])
        weights = shape["layers"] * layer_weights(shape) + shape["hidden"] * shape["vocab"]
        width = 1 if labels["method"] == "sequential" else int(labels["width"])
        taken_s = {}
        for name, processor in on["processors"].items():
            tile = int(processor["tile"])
            rate = processor["peak"]["fp16"] * at(processor["efficiency"], width)
            computing_s = 2 * weights * ceil(width / tile) * tile / rate
            taken_s[name] = max(computing_s, weights * shape["bits"] / 8 / processor["bandwidth"])
        if labels["method"] in ("sequential", "medusa"):
            launches_s = (shape["layers"] + 2) * on["processors"]["gpu"]["launch"]
            assert values["target_pass"] == pytest.approx(taken_s["gpu"] + launches_s, rel=0.01)
        else:
            together_s = 1 / (1 / taken_s["gpu"] + 1 / taken_s["cpu"])
            assert values["target_pass"] >= together_s
            assert values["target_pass"] <= max(taken_s.values())
