"""Claims of a paper's prose beside our tables: which figures each takes, how they agree, what is said."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from invented_tables import BIBTEX, CELLS, CLAIMS, SPEEDUP, spec, write_table, write_tables
from repro.core.errors import InputError
from repro.reports.claims.claims import Claim, ClaimsSpec, Line, compare, is_prose
from repro.reports.claims.claims_page import to_csv, write_claims
from repro.reports.comparison.certain import DERIVED
from repro.reports.intervals.bootstrap import RESAMPLES
from repro.reports.reference.reference import load_cells
from tiny_project import write_project


@dataclass(frozen=True)
class InventedDraws:
    """Draws by row's id, of prompts and of machines."""

    prompts: Mapping[str, NDArray[np.float64]]
    machines: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def sampled(self, lines: Sequence[Line]) -> list[NDArray[np.float64] | None]:
        return [self.prompts.get(line["id"]) for line in lines]

    def banded(self, lines: Sequence[Line]) -> list[NDArray[np.float64] | None]:
        return [self.machines.get(line["id"]) for line in lines]


def two_lines(folder: Path, n: int | str = 30) -> None:
    """A table with the figures 3 over 20 prompts and 9 over others."""
    write_table(
        folder,
        "edgellm/fig15",
        {"id": "t5", "ours": 3, "low": 2, "high": 4, "n": 20, "column": "speedup"},
        {"id": "mt5", "ours": 9, "low": 8, "high": 9.9, "n": n, "column": "speedup"},
    )


def only_claim(
    folder: Path, take: str, draws: Any = None, rows: Sequence[str] = (), published: str = "range"
) -> Claim:
    """A claim over all lines of the table."""
    name = f"edgellm.text.{published}"
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
        assert (found["ms"].comparison.published.low, found["ms"].comparison.fitted) == (0.9, True)

    def test_an_interval_of_one_line_is_its_own(self, tmp_path: Path) -> None:
        line = {"id": "t5", "ours": 3, "low": 2.5, "high": 3.5, "n": 20, "column": "speedup"}
        write_table(tmp_path, "edgellm/fig15", {**line, "band_low": 2, "band_high": 4})
        for take in ("only", "mean", "max"):
            (figure,) = only_claim(tmp_path, take).comparison.ours
            assert (figure.interval, figure.band) == ((2.5, 3.5), (2.0, 4.0))

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
        (figure,) = only_claim(tmp_path, "mean", InventedDraws({}, machines)).comparison.ours
        assert figure.band == (6.0, 6.0)
        lacking = InventedDraws({}, {"t5": machines["t5"]})
        assert only_claim(tmp_path, "mean", lacking).comparison.ours[0].band is None

    @pytest.mark.parametrize(
        ("take", "above", "below", "value"),
        [
            ("quotient", 9, 3, (3.0, 3.0)),
            ("gain_quotient", 9, 3, (4.0, 4.0)),
            ("gain_quotient", 9, 1, None),  # by nothing
        ],
    )
    def test_a_quotient_of_two_rows(
        self, take: str, above: float, below: float, value: tuple[float, float] | None, tmp_path: Path
    ) -> None:
        rows = [
            {"id": name, "ours": ours, "column": "speedup"} for name, ours in (("4", above), ("6", below))
        ]
        write_table(tmp_path, "edgellm/fig15", *rows)
        assert only_claim(tmp_path, take, rows=["4", "6"], published="single").ours == value

    @pytest.mark.parametrize("least", [0.0, -1.0])
    def test_a_quotient_whose_lower_part_may_be_nothing_has_no_interval(
        self, least: float, tmp_path: Path
    ) -> None:
        two_lines(tmp_path)
        draws = InventedDraws({"t5": np.array([least, 6.0]), "mt5": np.array([8.0, 10.0])})
        (figure,) = only_claim(tmp_path, "quotient", draws, ["mt5", "t5"]).comparison.ours
        assert (figure.value, figure.interval) == (3.0, None)

    def test_what_follows_from_compared_figures_is_derived(self, tmp_path: Path) -> None:
        compared = {"reference": "edgellm.fig18.a", "cell": "a", "ours": 3, "column": "seconds", "id": "t5"}
        other = {**compared, "reference": "edgellm.fig18.b", "cell": "b", "ours": 6, "id": "mt5"}
        over = {"cell": "a", "baseline": "b", "ours": 0.5, "column": "speedup", "id": "t5"}
        write_table(tmp_path, "edgellm/fig15", compared, other, over)
        assert only_claim(tmp_path, "only", published="single").comparison.certain == DERIVED

    @pytest.mark.parametrize(
        ("claims", "sentence"),
        [
            ({"edgellm.text.over": None}, "in edgellm/claims the claims lack edgellm.text.over$"),
            ({"lever.text.other": {"absent": "x"}}, "though it is of another paper, lever.text.other"),
            (
                {"edgellm.text.over": {**SPEEDUP, "take": "quotient", "rows": ["t5"]}},
                "takes a quotient of two `rows`, and names 1",
            ),
            (
                {"edgellm.text.rnage": {"absent": "x"}},
                "'edgellm.text.rnage'. Did you mean edgellm.text.range",
            ),
            ({"edgellm.text.over": {}}, "lack edgellm.text.over"),
            ({"edgellm.text.over": {"note": "x"}}, "needs either `tables` and `columns`, or `absent`"),
            ({"edgellm.text.over": {**SPEEDUP, "absent": "x"}}, "needs either `tables`"),
            ({"edgellm.text.over": SPEEDUP}, "takes the only figure of 3; name its row, or take others"),
            ({"edgellm.text.over": {**SPEEDUP, "rows": ["t6"]}}, "no row 't6'"),
            (
                {"edgellm.text.over": {**SPEEDUP, "columns": ["speed"]}},
                "no column 'speed'. Did you mean speedup",
            ),
            (
                {"edgellm.text.over": {"tables": ["edgellm/fig99", "edgellm/fig98"], "columns": ["a"]}},
                "make them first: experiment=edgellm/fig99; experiment=edgellm/fig98$",
            ),
            (
                {"edgellm.text.over": {**SPEEDUP, "columns": ["speedup", "tokens"], "take": "max"}},
                "takes figures in 'tokens', 'x'",
            ),
        ],
    )
    def test_bad_input(self, claims: dict[str, Any], sentence: str, folder: Path) -> None:
        with pytest.raises(InputError, match=sentence):
            compare(spec(claims=claims), folder, CELLS)

    def test_a_claim_that_comes_twice(self, folder: Path) -> None:
        twice = [{"id": name, "absent": "x"} for name in (*CLAIMS, "edgellm.text.range")]
        given = ClaimsSpec.parse("c", {"title": "T", "paper": "edgellm", "claims": twice})
        with pytest.raises(InputError, match=r"in c the claims repeat edgellm\.text\.range$"):
            compare(given, folder, CELLS)

    def test_files_are_the_same_every_time(self, folder: Path) -> None:
        _, files = write_claims(spec(), folder, CELLS, BIBTEX)
        before = [path.read_bytes() for path in files.values()]
        assert [path.relative_to(folder).as_posix() for path in files.values()] == [
            f"edgellm/claims/table.{name}" for name in ("md", "csv", "tex")
        ]
        _, again = write_claims(spec(), folder, CELLS, BIBTEX)
        assert [path.read_bytes() for path in again.values()] == before

    def test_the_command_computes_no_cell(self, tmp_path: Path) -> None:
        """From a file of claims to its table."""
        project = write_project(tmp_path)
        write_table(project.out / "results", "edgellm/fig15", {"id": "t5", "ours": "3", "column": "speedup"})
        conf = tmp_path / "conf" / "experiment" / "edgellm"
        conf.mkdir(parents=True)
        first, *others = [c.id for c in load_cells().values() if c.paper == "edgellm" and is_prose(c)]
        claims = [{"id": first, **SPEEDUP}, *({"id": name, "absent": "a test"} for name in others)]
        content = {
            "name": "edgellm/every_claim",
            "table": {"title": "T", "paper": "edgellm", "claims": claims},
        }
        (conf / "every_claim.yaml").write_text(
            f"# @package _global_\n{yaml.safe_dump(content)}", encoding="utf-8"
        )
        done = project.here(f"hydra.searchpath=[file://{tmp_path}/conf]", "experiment=edgellm/every_claim")
        assert done.returncode == 0, done.stderr
        assert (project.out / "results" / "edgellm" / "every_claim" / "table.md").exists()
        assert f"Of {len(claims)} claims" in done.stdout
        assert project.store.all() == []
