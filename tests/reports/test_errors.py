"""Errors over a paper's tables: what counts, why it misses, what it is worth; the page over all papers."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import records
from invented_tables import BIBTEX, CELLS, cell, spec, write_table, write_tables
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.claims.claims_page import write_claims
from repro.reports.comparison.certain import REPEATED
from repro.reports.comparison.comparison import Compared, Figure
from repro.reports.comparison.published import Published
from repro.reports.fidelity.coverage import coverage, unnamed
from repro.reports.fidelity.errors_page import UNEXPLAINED, Evidence, page, report, to_csv
from repro.reports.fidelity.fidelity_page import write_fidelity
from repro.reports.fidelity.headlines import read_headlines
from repro.reports.fidelity.reading import Comparisons, read_comparisons
from repro.reports.fidelity.reasons import Reason, read_reasons
from repro.reports.fidelity.skill import read_floors, skill, trivial
from repro.reports.fidelity.winners import counted, races
from repro.reports.reference.reference import PublishedCell, load_cells

NOTHING = Evidence((), {}, ())
DRAFT = Reason("a proxy's words", "above", rule={"artifact": ("table4",)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path


@pytest.fixture
def compared(folder: Path) -> Path:
    """Hits, misses, a fitted cell, a bound, an absent one; and claims, one of which a table compares too."""

    def line(name: str, reference: str, ours: float | None, marks: str = "") -> dict[str, Any]:
        low, high = CELLS[reference].value_low, CELLS[reference].value_high
        ends = {"published_low": "" if low is None else low, "published_high": high}
        given = {"ours": "" if ours is None else ours, "marks": marks, "cell": f"{name}0"}
        return {"id": name, "column": "c", "reference": reference, **given, **ends}

    write_table(
        folder,
        "edgellm/fig18",
        line("a", "edgellm.fig18.a", 1.5),
        line("b", "edgellm.fig18.b", 1.8, "proxy matched"),
        line("c", "edgellm.fig18.b", 1.5, "fitted"),
        line("d", "edgellm.text.up_to", 1.5),
        line("e", "edgellm.fig18.b", None),
        line("f", "lever.text.other", 9.0),
        line("g", "edgellm.text.single", 6.0),
    )
    write_table(
        folder,
        "edgellm/table4",
        {**line("t5", "edgellm.table4.t5.draft", 10.0), "unit": "%"},
        {**line("mt5", "edgellm.table4.mt5.draft", 30.0), "unit": "%"},
    )
    write_claims(spec(), folder, CELLS, BIBTEX)
    return folder


@pytest.fixture
def found(compared: Path) -> Comparisons:
    return read_comparisons(compared, CELLS)


class TestErrors:
    def test_what_counts(self, found: Comparisons) -> None:
        summary = report("edgellm", found, CELLS, NOTHING).summary
        assert [(one.cell.id.partition(".")[2], round(one.error or 0, 3)) for one in summary.relative] == [
            ("text.single", 2.0),
            ("table4.mt5.draft", 0.5),
            ("table4.t5.draft", -0.5),
            ("fig18.b", 0.2),
            ("text.range", 0.1),
            ("fig18.a", 0.0),
        ]
        assert [one.cell.id for one in summary.kept] == ["edgellm.text.up_to"]
        assert [one.cell.id for one in summary.fitted] == ["edgellm.fig18.b", "edgellm.text.ms"]
        assert len(summary.absent) == 2
        assert {one.certain for one in summary.certain} == {REPEATED}, "claims that a table has too"

    def test_in_words(self, found: Comparisons) -> None:
        shown = page(
            report("edgellm", found, CELLS, Evidence([DRAFT], {"edgellm.fig18.b": 0.3}, ())), "c1", "2026"
        )
        misses, every, certain, rules = shown.grids
        assert [(line[0].rpartition(".")[0], line[-1]) for line in misses.lines] == [
            ("edgellm.text", UNEXPLAINED),
            ("edgellm.table4.mt5", "a proxy's words"),
            ("edgellm.table4.t5", UNEXPLAINED),
        ]
        assert every.lines[3][:7] == (
            "edgellm.fig18.b",
            "edgellm/fig18",
            "b, c",
            "1.5 ×",
            "1.8 §",
            "—",
            "20% above",
        )
        assert every.lines[3][8] == "30%"
        assert all(line[2] == REPEATED for line in certain.lines)
        assert rules.lines == (("artifact table4", "above", "1", "1", "a proxy's words"),)
        assert (
            "3 are off by more than 25%, or 10 points (the first table); 1 of them have a reason, "
            "2 have none." in shown.notes
        )
        assert any("1 are off by no more than that" in note for note in shown.notes)
        assert (
            shown.notes[-1]
            == "2026, commit c1, made by `python scripts/errors.py edgellm --results results`."
        )

    def test_csv(self, found: Comparisons) -> None:
        lines = list(
            csv.DictReader(io.StringIO(to_csv(report("edgellm", found, CELLS, Evidence([DRAFT], {}, ())))))
        )
        assert [line["group"] for line in lines[:6]] == ["relative"] * 6
        assert (lines[1]["row"], lines[1]["ours"], lines[1]["reason"]) == ("mt5", "30.0", "a proxy's words")
        claim = next(line for line in lines if line["reference"] == "edgellm.text.range")
        assert (claim["table"], claim["ours"], claim["ours_high"]) == ("edgellm/claims", "3.0", "10.23")
        assert claim["verdict"] == claim["point"] == "holds"

    @pytest.mark.parametrize(
        ("paper", "sentence"),
        [("edgelm", "no paper 'edgelm'. Did you mean edgellm"), ("ghidorah", "no paper 'ghidorah'")],
    )
    def test_bad_input(self, paper: str, sentence: str, found: Comparisons) -> None:
        with pytest.raises(InputError, match=sentence):
            report(paper, found, CELLS, NOTHING)

    def test_no_table_compares_anything(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="make tables first"):
            read_comparisons(tmp_path, CELLS)


class TestReasons:
    def test_a_reason_explains_one_direction(self) -> None:
        path = conf_dir() / "reference" / "reasons.yaml"
        assert len(read_reasons(path, load_cells())) > 20

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("a: b", "must be a list of reasons"),
            ("[a]", "'a' must be a mapping"),
            ("[{why: x, ours: above}]", "needs either `id` or `rule`"),
            ("[{why: x, ours: up, id: edgellm.fig18.a}]", "above"),
            ("[{why: x, ours: above, id: edgellm.fig18.aa}]", "edgellm.fig18.a"),
            ("[{why: x, ours: above, rule: {papr: edgellm}}]", "Did you mean paper"),
            ("[{why: x, ours: above, rule: {paper: edgelm}}]", "no published cell has paper 'edgelm'"),
            ("[{why: x, ours: above, rule: {paper: lever, unit: ms}}]", "no published cell has paper lever"),
        ],
    )
    def test_bad_input(self, text: str, sentence: str, tmp_path: Path) -> None:
        (tmp_path / "reasons.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=sentence):
            read_reasons(tmp_path / "reasons.yaml", CELLS)


def timed(model: str, value: float, name: str = "edgellm.table1.a", **texts: str) -> PublishedCell:
    return cell(name, value, value, "s", metric="e2e_latency", model=model, **texts)


def beside(published: PublishedCell, *ours: float) -> Compared:
    ends = Published(published.id, published.value_low, published.value_high)
    return Compared(published, ends, published.unit, tuple(map(Figure, ours)))


class TestSkill:
    def test_a_ratio_is_one(self) -> None:
        other = trivial(beside(cell("edgellm.fig1.a", 4.0, 4.0, relative_to="Std"), 3.0), [])
        assert other is not None
        assert other.error == pytest.approx(-0.75)

    def test_a_time_is_the_nearest_fitted_cell_s_scaled_by_weights(self) -> None:
        near = timed("LLaMA-7B", 10.0, "edgellm.table1.near", device="phone")
        far = timed("LLaMA-7B", 99.0, "edgellm.table1.far", device="board")
        other = trivial(beside(timed("LLaMA-13B", 20.0, device="phone"), 18.0), [far, near])
        assert other is not None
        assert other.ours[0].value == pytest.approx(10 * 13 / 7)
        assert trivial(beside(timed("T5-Large", 20.0), 18.0), [near]) is None, "a size that no name says"
        assert trivial(beside(near, 18.0), [near]) is None, "itself is no predictor"

    def test_skill_is_over_what_both_have(self) -> None:
        ours = [beside(timed("LLaMA-7B", 10.0), 11.0), beside(timed("T5-Large", 10.0), 99.0)]
        theirs = [beside(timed("LLaMA-7B", 10.0), 12.0), None]
        assert skill(ours, theirs) == (1, pytest.approx(0.2), pytest.approx(0.5))
        assert skill(ours, [None, None]) is None

    def test_floors(self, tmp_path: Path) -> None:
        path = tmp_path / "contradictions.csv"
        path.write_text(
            "id,low,high,where\nedgellm.text.range,2.9,18.6,a table\nedgellm.text.over,1.5,,a figure\n",
            encoding="utf-8",
        )
        assert read_floors(path, CELLS) == {
            "edgellm.text.range": pytest.approx(1.0),
            "edgellm.text.over": pytest.approx(0.5),
        }
        path.write_text("id,low,high,where\nedgellm.text.range,,,a table\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"edgellm\.text\.range"):
            read_floors(path, CELLS)
        assert read_floors(conf_dir() / "reference" / "contradictions.csv", load_cells())


def test_winners() -> None:
    def one(system: str, printed: float, ours: float, marks: tuple[str, ...] = ()) -> Compared:
        published = timed("LLaMA-7B", printed, f"edgellm.table1.{system}", system=system)
        return Compared(published, Published("", printed, printed), "s", (Figure(ours),), marks=marks)

    (race,) = races(
        [one("EdgeLLM", 1.0, 2.0), one("SP", 3.0, 1.5), one("Std", 9.0, 8.0), one("STI", 9.05, 1.0)]
    )
    assert counted([race], "EdgeLLM") == (2, 5, 0, 1), "a printed tie is no pair"
    assert counted([race], "SP")[2:] == (0, 0), "the paper has another first"
    assert races([one("EdgeLLM", 1.0, 2.0)]) == []
    fitted = races([one("EdgeLLM", 1.0, 2.0, ("fitted",)), one("SP", 3.0, 1.5, ("fitted",))])
    assert counted(fitted, "EdgeLLM") == (0, 0, 0, 1)


def test_coverage(found: Comparisons) -> None:
    counts = coverage(CELLS, found, [])["edgellm"]
    assert counts["predicted"] == 6
    assert (counts["bound"], counts["fitted"], counts["absent"]) == (1, 1, 1)
    assert counts.total() == sum(one.paper == "edgellm" for one in CELLS.values())
    assert unnamed(CELLS, found) == []


def test_the_page_over_all_papers(found: Comparisons, tmp_path: Path) -> None:
    path = tmp_path / "headlines.yaml"
    path.write_text(
        "systems: {edgellm: EdgeLLM}\n"
        "claims: [{id: edgellm.text.single, says: twice as fast}, "
        "{id: edgellm.text.range, says: much faster}]\n",
        encoding="utf-8",
    )
    headlines = read_headlines(path, CELLS)
    reports = [report("edgellm", found, CELLS, NOTHING)]
    one = records.record("std", {"prompts": 3})
    text = write_fidelity(reports, found, CELLS, headlines, [one], [one.key], tmp_path).read_text(
        encoding="utf-8"
    )
    assert "Of 2: 1 fails, 1 holds. By our figures alone: 1 fails, 1 holds." in text
    assert "| twice as fast | 2 × | 6 × |  | 200% above | fails | fails |  |" in text
    assert "| all five |" in text
    path.write_text("systems: {edgellm: EdgLLM}\nclaims: []\n", encoding="utf-8")
    with pytest.raises(InputError, match="Did you mean EdgeLLM"):
        read_headlines(path, CELLS)


def test_our_own_headlines_are_published_values() -> None:
    assert 10 <= len(read_headlines(conf_dir() / "reference" / "headlines.yaml", load_cells()).claims) <= 15
