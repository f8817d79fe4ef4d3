"""Claims of a paper's prose beside our tables: which figures each takes, how they agree, what is said."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from invented_tables import CELLS, CLAIMS, SPEEDUP, spec, write_table, write_tables
from repro.core.errors import InputError
from repro.reports.claims.claims import Claim, ClaimsSpec, Line, compare
from repro.reports.claims.claims_page import to_csv
from repro.reports.intervals.bootstrap import RESAMPLES


@dataclass(frozen=True)
class InventedDraws:
    """Draws by row's id, of prompts and of machines."""

    prompts: Mapping[str, NDArray[np.float64]]
    machines: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def prompt_draws(self, lines: Sequence[Line]) -> list[NDArray[np.float64] | None]:
        return [self.prompts.get(line["id"]) for line in lines]

    def machine_draws(self, lines: Sequence[Line]) -> list[NDArray[np.float64] | None]:
        return [self.machines.get(line["id"]) for line in lines]


def two_lines(folder: Path, n: int | str = 30, lower: float = 3) -> None:
    """A table with the figures 3 over 20 prompts and 9 over others."""
    lines = ({"id": "t5", "ours": lower, "n": 20}, {"id": "mt5", "ours": 9, "n": n})
    ends = {"column": "speedup", "low": 2, "high": 9.9}
    write_table(folder, "edgellm/fig15", *({**ends, **line} for line in lines))


def only_claim(folder: Path, take: str, draws: Any = None, rows: Sequence[str] = ()) -> Claim:
    """A claim over all lines of the table."""
    name = "edgellm.text.range"
    claim = {"id": name, **SPEEDUP, "take": take, "rows": rows}
    given = ClaimsSpec.parse("c", {"title": "T", "paper": "edgellm", "claims": [claim]})
    return compare(given, folder, {name: CELLS[name]}, draws)[0]


EVEN = np.linspace(-1, 1, 10_001)
"""Draws that are even over [-1, 1]: 95% of them lie within 0.95."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path


class TestClaims:
    def test_each_is_set_beside_the_figures_it_names(self, folder: Path) -> None:
        found = {
            claim.comparison.cell.id.rpartition(".")[2]: claim for claim in compare(spec(), folder, CELLS)
        }
        assert {name: (claim.ours, claim.verdict) for name, claim in found.items()} == {
            "range": ((3.0, 10.23), "holds"),
            "single": ((3.0, 3.0), "fails"),
            "up_to": ((10.23, 10.23), "fails"),
            "over": (None, "absent"),
            "ms": ((0.9, 0.9), "holds"),
        }
        assert found["range"].comparison.error == pytest.approx(10.23 / 9.3 - 1)
        assert (found["range"].failed, found["range"].comparison.marks) == (1, ("proxy",))
        assert found["up_to"].comparison.error is None, "a bound is no prediction"
        assert (found["ms"].comparison.published.low, found["ms"].comparison.is_fitted) == (0.9, True)

    def test_of_several_lines_values_are_taken_draw_by_draw(self, tmp_path: Path) -> None:
        """Two cells that move against each other: 3 + x and 9 - 2 x, x even over [-1, 1] in 10,001 draws.

        The ends of their intervals are 2.05 and 3.95, 7.1 and 10.9. The mean is 6 - x / 2, the difference of
        the mean of ends from it three times as wide.
        """
        draws = InventedDraws({"t5": 3 + EVEN, "mt5": 9 - 2 * EVEN})
        two_lines(tmp_path)
        (mean,) = only_claim(tmp_path, "mean", draws).comparison.ours
        assert (mean.value, mean.interval) == (6.0, pytest.approx((5.525, 6.475)))
        between = only_claim(tmp_path, "range", draws)
        least, most = between.comparison.ours
        assert (least.value, least.interval) == (3.0, pytest.approx((2.05, 3.95)))
        assert (most.value, most.interval) == (9.0, pytest.approx((7.1, 10.9)))
        (line,) = csv.DictReader(io.StringIO(to_csv([between])))
        written = [float(line[name]) for name in ("low", "low_to", "high_from", "high")]
        assert written == pytest.approx([2.05, 3.95, 7.1, 10.9])
        (quotient,) = only_claim(tmp_path, "quotient", draws, ["mt5", "t5"]).comparison.ours
        assert quotient.interval == pytest.approx((7.1 / 3.95, 10.9 / 2.05)), "not 10.9 / 3.95"

    @pytest.mark.parametrize(
        ("prompts", "n", "interval", "verdict"),
        [
            ({"t5": 3 + EVEN, "mt5": 9 - EVEN}, 30, (6.0, 6.0), "holds"),
            ({"t5": np.ones(5)}, 30, None, "undetermined (our figure alone: holds)"),
            ({}, 30, None, "undetermined (our figure alone: holds)"),
            ({"t5": 3 + np.linspace(-1, 1, RESAMPLES)}, "", (5.525, 6.475), "holds"),
        ],
        ids=["what cancels is sure", "of one line", "of none", "a line that rests on no prompt is the same"],
    )
    def test_a_mean_has_the_interval_of_common_draws(
        self, prompts: Any, n: int | str, interval: tuple[float, float] | None, verdict: str, tmp_path: Path
    ) -> None:
        two_lines(tmp_path, n)
        claim = only_claim(tmp_path, "mean", InventedDraws(prompts) if prompts else None)
        expected = None if interval is None else pytest.approx(interval, abs=1e-3)
        assert claim.comparison.ours[0].interval == expected
        assert (claim.comparison.n, claim.verdict) == (n or 20, verdict)

    def test_bands_are_taken_machine_by_machine(self, tmp_path: Path) -> None:
        """Of a longer list of draws only those that the others have as well are common."""
        two_lines(tmp_path)
        machines = {"t5": np.array([2.0, 4.0]), "mt5": np.array([10.0, 8.0, 100.0])}
        for some, band in ((machines, (6.0, 6.0)), ({"t5": machines["t5"]}, None)):
            (figure,) = only_claim(tmp_path, "mean", InventedDraws({}, some)).comparison.ours
            assert figure.band == band

    @pytest.mark.parametrize(
        ("take", "lower", "least", "value", "interval"),
        [
            ("quotient", 3, 2.0, 3.0, (1.725, 3.942)),
            ("gain_quotient", 3, 2.0, 4.0, (1.93, 6.87)),
            ("gain_quotient", 1, 2.0, None, None),  # by nothing
            ("quotient", 3, 0.0, 3.0, None),  # in some draw by nothing
            ("quotient", 3, -1.0, 3.0, None),
        ],
    )
    def test_a_quotient_of_two_rows(
        self, take: str, lower: float, least: float, value: float | None, interval: Any, tmp_path: Path
    ) -> None:
        """9 over the other row's value, or what both are above 1; by draws 8 over the least and 10 over 6."""
        two_lines(tmp_path, lower=lower)
        draws = InventedDraws({"t5": np.array([least, 6.0]), "mt5": np.array([8.0, 10.0])})
        ours = only_claim(tmp_path, take, draws, ["mt5", "t5"]).comparison.ours
        expected = interval and pytest.approx(interval, abs=1e-3)
        assert [(figure.value, figure.interval) for figure in ours] == [(value, expected)] * (
            value is not None
        )

    @pytest.mark.parametrize(
        ("claims", "sentence"),
        [
            ({"over": None}, "in edgellm/claims the claims lack edgellm.text.over$"),
            ({"over": {}}, "lack edgellm.text.over"),
            ({"rnage": {"absent": "x"}}, "'edgellm.text.rnage'. Did you mean edgellm.text.range"),
            ({"over": {"note": "x"}}, "needs either `tables` and `columns`, or `absent`"),
            ({"over": {**SPEEDUP, "absent": "x"}}, "needs either `tables`"),
            ({"over": SPEEDUP}, "takes the only figure of 3; name its row, or take others"),
            ({"over": {**SPEEDUP, "rows": ["t6"]}}, "no row 't6'"),
            ({"over": {**SPEEDUP, "columns": ["speed"]}}, "no column 'speed'. Did you mean speedup"),
            ({"over": {**SPEEDUP, "take": "quotient", "rows": ["t5"]}}, "of two `rows`, and names 1"),
            ({"over": {**SPEEDUP, "columns": ["speedup", "tokens"], "take": "max"}}, "in 'tokens', 'x'"),
            (
                {"over": {"tables": ["edgellm/fig99", "edgellm/fig98"], "columns": ["a"]}},
                "make them first: experiment=edgellm/fig99; experiment=edgellm/fig98$",
            ),
        ],
    )
    def test_a_claim_that_cannot_be_set_beside_a_figure_is_said(
        self, claims: dict[str, Any], sentence: str, folder: Path
    ) -> None:
        with pytest.raises(InputError, match=sentence):
            compare(spec(claims={f"edgellm.text.{name}": c for name, c in claims.items()}), folder, CELLS)

    def test_every_claim_is_the_paper_s_and_comes_once(self, folder: Path) -> None:
        for more, sentence in (
            ("edgellm.text.range", r"in c the claims repeat edgellm\.text\.range$"),
            ("lever.text.other", "though it is of another paper, lever.text.other"),
        ):
            claims = [{"id": name, "absent": "x"} for name in (*CLAIMS, more)]
            given = ClaimsSpec.parse("c", {"title": "T", "paper": "edgellm", "claims": claims})
            with pytest.raises(InputError, match=sentence):
                compare(given, folder, CELLS)
