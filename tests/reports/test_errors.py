"""The report of errors over a paper's tables: what counts as predicted, what misses, and for which reason."""

import csv
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from invented_tables import BIBTEX, CELLS, spec, write_table, write_tables
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.claims.claims_page import write_claims
from repro.reports.claims.errors import UNEXPLAINED, read_reasons, report
from repro.reports.claims.errors_page import page, to_csv
from repro.reports.reference.reference import load_cells
from scripts import errors as errors_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path


@pytest.fixture
def compared(folder: Path) -> Path:
    """Hits, misses, a fitted cell, a bound, an absent one; and claims, one of which a table compares too."""

    def line(
        name: str, reference: str, ours: float | None, ratio: float | None, marks: str = ""
    ) -> dict[str, Any]:
        given = {"ours": "" if ours is None else ours, "ratio": "" if ratio is None else ratio}
        low, high = CELLS[reference].value_low, CELLS[reference].value_high
        ends = {"published_low": "" if low is None else low, "published_high": high}
        return {"id": name, "column": "c", "reference": reference, "marks": marks, **given, **ends}

    write_table(
        folder,
        "edgellm/fig18",
        line("a", "edgellm.fig18.a", 1.5, 1.0),
        line("b", "edgellm.fig18.b", 1.8, 1.2, "proxy matched"),
        line("c", "edgellm.fig18.b", 1.5, 1.0, "fitted"),
        line("d", "edgellm.text.up_to", 1.5, None),
        line("e", "edgellm.fig18.b", None, None),
        line("f", "lever.text.other", 9.0, 9.0),
        line("g", "edgellm.text.single", 6.0, 3.0),
    )
    write_table(
        folder,
        "edgellm/table4",
        {**line("t5", "edgellm.table4.t5.draft", 10.0, 0.5), "unit": "%"},
        {**line("mt5", "edgellm.table4.mt5.draft", 30.0, 1.5), "unit": "%"},
    )
    write_claims(spec(), folder, CELLS, BIBTEX)
    return folder


class TestErrors:
    def test_what_counts(self, compared: Path) -> None:
        found = report(
            "edgellm", compared, CELLS, {"edgellm.table4.*": "general", "edgellm.table4.t5.*": "special"}
        )
        assert [
            (x.line["reference"].partition(".")[2], round(x.ratio, 3), x.reason) for x in found.predicted
        ] == [
            ("text.single", 3.0, UNEXPLAINED),
            ("table4.mt5.draft", 1.5, "general"),
            ("table4.t5.draft", 0.5, "special"),
            ("fig18.b", 1.2, ""),
            ("text.range", 1.1, ""),
            ("fig18.a", 1.0, ""),
        ]
        assert (found.fitted, found.bounds, found.absent) == (2, 1, 2)

    def test_in_words(self, compared: Path) -> None:
        shown = page(report("edgellm", compared, CELLS, {"edgellm.table4.*": "why"}))
        assert [line[0] for line in shown.grids[0].lines] == [
            *("edgellm.text.single", "edgellm.table4.mt5.draft", "edgellm.table4.t5.draft"),
        ]
        assert shown.grids[0].lines[2] == (
            *("edgellm.table4.t5.draft", "edgellm/table4", "t5, c", "20 %", "10", "0.50", "why"),
        )
        assert shown.grids[1].lines[4][:5] == (
            "edgellm.text.range",
            "edgellm/claims",
            "",
            "2.9–9.3 ×",
            "3–10.2",
        )
        assert shown.notes[:4] == (
            "Of edgellm's values 6 are predicted and compared.",
            "Median error 35.0%, worst 200.0%; 1 agree exactly or lie in a published range, "
            "and over the others the median is 50.0%.",
            "3 miss by more than 25% (the first table); 2 of them are explained.",
            "Left out: 2 that are fitted or determined by a matched agreement, "
            "1 of which the paper gives only a bound, 2 without a figure of ours.",
        )

    def test_csv(self, compared: Path) -> None:
        lines = list(csv.DictReader(io.StringIO(to_csv(report("edgellm", compared, CELLS, {})))))
        assert len(lines) == 6
        assert (lines[1]["row"], lines[1]["ours"], lines[1]["reason"]) == ("mt5", "30.0", UNEXPLAINED)
        assert (lines[4]["table"], lines[4]["ours"]) == ("edgellm/claims", "3.0..10.23")

    def test_reasons(self, tmp_path: Path) -> None:
        path = tmp_path / "reasons.yaml"
        path.write_text("# none yet\n{}\n")
        assert read_reasons(path, CELLS) == {}
        path.write_text("edgellm.table4.*.draft: a proxy's words\n")
        assert read_reasons(path, CELLS) == {"edgellm.table4.*.draft": "a proxy's words"}
        path.write_text("edgellm.table4.*.darft: a slip\n")
        with pytest.raises(InputError, match=r"edgellm\.table4\.\*\.darft"):
            read_reasons(path, CELLS)
        path.write_text("- a\n")
        with pytest.raises(InputError, match=r"reasons\.yaml must map ids"):
            read_reasons(path, CELLS)

    def test_our_own_reasons_are_of_published_cells(self) -> None:
        cells = load_cells()
        assert set(read_reasons(conf_dir() / "reference" / "reasons.yaml", cells)) <= set(cells) | {
            pattern
            for pattern in read_reasons(conf_dir() / "reference" / "reasons.yaml", cells)
            if "*" in pattern
        }

    @pytest.mark.parametrize(
        ("paper", "sentence"),
        [("edgelm", "no paper 'edgelm'. Did you mean edgellm"), ("lever", "no table in")],
    )
    def test_bad_input(self, paper: str, sentence: str, folder: Path) -> None:
        with pytest.raises(InputError, match=sentence):
            report(paper, folder, CELLS, {})

    def test_the_script(self, compared: Path, capsys: pytest.CaptureFixture[str], script: ModuleType) -> None:
        assert script.main(["edgellm", "--results", str(compared)]) == 0
        assert "6 are predicted" in capsys.readouterr().out
        assert sorted(path.name for path in (compared / "edgellm" / "errors").iterdir()) == [
            *("table.csv", "table.md", "table.tex"),
        ]
        assert script.main(["edgellm", "--results", str(compared)]) == 0, "its own CSV is no table"
        assert script.main(["edgelm", "--results", str(compared)]) == 2
        assert "error: there is no paper 'edgelm'" in capsys.readouterr().err

    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        monkeypatch.setattr(errors_command, "load_cells", lambda: CELLS)
        monkeypatch.setattr(errors_command, "read_reasons", lambda path, cells: {})
        return errors_command
