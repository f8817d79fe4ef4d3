"""A short table is written out: rows and columns from the grid, published values by coordinates, packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.core import paths
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import footnotes, load_names, load_notes
from repro.reports.reference.reference import load_cells
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.grid import ExperimentGrid, word
from repro.reports.spec.spec import TableSpec

HEADER = (
    "id,paper,artifact,section,device,system,model,draft_model,dataset,condition,metric,value_low,value_high,"
    "unit,relative_to,note\n"
)


def line(name: str, system: str = "", metric: str = "rouge_l", **texts: str) -> str:
    """A line of cells.csv in % of an artifact `table1`."""
    given = {
        "device": "",
        "model": "",
        "dataset": "",
        "condition": "",
        "relative_to": "",
        "unit": "%",
    } | texts
    return (
        f"mine.{name},mine,table1,4,{given['device']},{system},{given['model']},,{given['dataset']},"
        f"{given['condition']},{metric},1.5,1.5,{given['unit']},{given['relative_to']},\n"
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `conf/` folder of another package."""
    (tmp_path / "reference").mkdir()
    monkeypatch.setattr(paths, "_folders_of_packages", lambda: (tmp_path,))
    return tmp_path


GRID: dict[str, Any] = {"setup": ["t5_cnn", "mt5_squad"], "method": ["sp", "edgellm"]}
TABLE: dict[str, Any] = {
    "title": "T",
    "rows": "workload",
    "columns": [{"metric": "rouge_l", "each": "method"}],
}


def made(grid: Any = GRID, experiment: str = "mine/one", labels: Any = None, **table: Any) -> TableSpec:
    content = {"name": experiment, "grid": grid, "labels": labels or {}}
    return expand(experiment, TABLE | table, content)


def published(package: Path, *lines: str, names: str = "mine: {method: {sp: SP, edgellm: Ours}}") -> None:
    (package / "reference" / "cells.csv").write_text(HEADER + "".join(lines), encoding="utf-8")
    (package / "reference" / "names.yaml").write_text(names, encoding="utf-8")
    (package / "reference" / "papers.bib").write_text("@article{mine,\n title={Mine}\n}\n", encoding="utf-8")


class TestGrid:
    def test_axes_form_a_product_and_parts_a_sum(self) -> None:
        parts = [{"method": ["a", "b"]}, {"method": "c", "method.x": [1, 2]}]
        grid = ExperimentGrid.parse({"device": ["p", "q"], "cells": parts}, "here")
        points = grid.points()
        assert points is not None
        assert len(points) == 2 * (2 + 2)
        assert points[3] == {"device": "p", "method": "c", "method.x": 2}
        assert grid.params == {"device": "p,q"}
        assert grid.choices[2] == {"method": "c", "method.x": "1"}

    def test_values_are_written_as_the_command_line_has_them(self) -> None:
        assert [word(v) for v in (True, None, 0.5, "a_b", [1, 2], "Eq. 3")] == [
            *("true", "null", "0.5", "a_b", "[1,2]", "'Eq. 3'")
        ]

    def test_a_range_is_told_and_another_expression_is_not(self) -> None:
        assert len(ExperimentGrid.parse({"probe.layer": "range(0,30)"}, "here").points() or []) == 30
        assert ExperimentGrid.parse({"probe.layer": "glob(*)"}, "here").points() is None

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ({"method": {"a": 1}}, "here, method: .* must be a list of values"),
            ({"cells": [1]}, "here, cells: .* must be a list of settings"),
            ({"a": [1], "cells": [{"a": 2}]}, "here: 'a' stands both among the axes and in `cells`"),
        ],
    )
    def test_bad_input(self, content: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            ExperimentGrid.parse(content, "here")


class TestRowsAndColumns:
    def test_rows_are_those_of_the_grid_in_its_order(self) -> None:
        assert list(made().rows.names) == ["t5_cnn", "mt5_squad"]
        assert [column.key for column in made().columns] == ["sp", "edgellm"]

    def test_a_label_of_the_experiment_is_an_axis(self) -> None:
        spec = made(
            GRID | {"method.alpha": [0.1, 0.5]}, labels={"a": "${method.alpha}"}, rows=["workload", "a"]
        )
        assert list(spec.rows.names)[:2] == ["t5_cnn / 0.1", "t5_cnn / 0.5"]

    def test_the_metric_says_unit_digits_and_direction(self) -> None:
        (column,) = made(columns=["rouge_l"]).columns
        assert (column.value, column.unit, column.digits, column.better) == ("rouge_l", "%", 1, "higher")
        assert column.timed is False

    def test_a_unit_is_converted(self) -> None:
        (column,) = made(columns=[{"metric": "target_pass", "unit": "ms"}]).columns
        assert (column.unit, column.scale) == ("ms", 1000)

    def test_a_table_like_another_takes_what_it_lacks(self) -> None:
        own = {"title": "Own", "like": "edgellm/table4", "notes": None, "rows": "workload"}
        content = {"name": "edgellm/own", "grid": "edgellm/table4"}
        spec = expand("edgellm/own", own, content)
        other = expand("edgellm/table4", experiment_file("edgellm/table4")["table"], content)
        assert (spec.title, spec.footnotes) == ("Own", ())
        assert spec.columns == other.columns
        with pytest.raises(InputError, match=r"no experiment .*44'\. Did you mean edgellm/table4"):
            expand("edgellm/own", own | {"like": "edgellm/table44"}, content)

    def test_vs_turns_a_ratio_of_costs_over(self) -> None:
        spec = made(
            columns=[
                {"metric": m, "each": "method", "pairs": {m: "edgellm vs sp"}} for m in ("ttft", "rouge_l")
            ]
        )
        time, text = spec.columns
        assert (time.where, time.over) == ({"method": "sp"}, {"method": "edgellm"})
        assert (text.where, text.over) == ({"method": "edgellm"}, {"method": "sp"})
        assert (time.better, text.better) == ("higher", "higher")

    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            ({"columns": ["rouge"]}, "no metric 'rouge'. Did you mean rouge_l"),
            ({"columns": [{"each": "method"}]}, r"columns\.0: the field 'metric' is lacking"),
            ({"footnotes": ["Ours."]}, "has the key 'footnotes', which is no more: write `notes`"),
            ({"metric": "ttft"}, "has the key 'metric', which is no more: name the metric in each column"),
            (
                {"columns": [{"metric": "ttft", "against": {"method": "sp"}}]},
                r"columns\.0 has the key 'against', which is no more: write `relative_to` with labels",
            ),
            ({"columns": [{"metric": "ttft", "unit": "GB"}]}, "ttft is in 's', not in 'GB'"),
            ({"columns": [{"metric": "ttft", "value": "ttft"}]}, "stand in conf/metric/; name a `metric`"),
            ({"columns": [{"metric": "ttft", "each": "dev"}]}, "the grid does not tell the values of 'dev'"),
            (
                {"columns": [{"metric": "ttft", "each": "method", "pairs": {"x": "sp and bld"}}]},
                "'sp and bld' must be two values",
            ),
            (
                {"columns": [{"metric": "ttft", "each": "method", "pairs": {"x": "sp over bld"}}]},
                "no method 'bld'",
            ),
            ({"rows": {"label": "a"}}, "rows: there is no field 'label'. .*Choices: also, apart, by"),
            ({"notes": ["nothing_like_it"]}, "no shared footnote 'nothing_like_it'"),
            ({"paper": "table4"}, "paper is 'table4'; it must be a mapping"),
            (
                {"paper": {"paper": "edgellm", "artefact": "table4"}},
                "no field of a published cell 'artefact'. Did you mean artifact",
            ),
            ({"paper": {"artifact": "table4"}}, "paper: there is no paper 'mine'. .*Choices: edgellm"),
            ({"paper": {"paper": "edgelm", "artifact": "table4"}}, "no paper 'edgelm'. Did you mean edgellm"),
            ({"cite": ["levr"]}, "cites 'levr': there is no BibTeX entry 'levr'. Did you mean lever"),
        ],
    )
    def test_bad_input(self, table: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            made(**table)


class TestPapers:
    def test_a_folder_of_one_s_own_is_no_paper(self) -> None:
        assert made().cite == ()
        assert made(cite=["lever"]).cite == ("lever",)
        assert made(experiment="edgellm/one").cite == ("edgellm",)

    def test_a_folder_with_published_values_is_one(self, package: Path) -> None:
        published(package, line("a", "Ours"))
        assert made(paper={"artifact": "table1"}).cite == ("mine",)
        (package / "reference" / "papers.bib").unlink()
        with pytest.raises(InputError, match="cites 'mine': there is no BibTeX entry 'mine'"):
            made(paper={"artifact": "table1"})


class TestPublishedValues:
    def test_they_are_found_by_system_and_dataset(self, package: Path) -> None:
        published(package, line("a", "Ours", dataset="CNN/Daily"), line("b", "SP", dataset="SQuAD"))
        sp, ours = made(paper={"artifact": "table1"}).columns
        assert dict(sp.reference) == {"mt5_squad": "mine.b"}
        assert dict(ours.reference) == {"t5_cnn": "mine.a"}

    @pytest.mark.parametrize(
        "other",
        [
            line("a", "Theirs"),
            line("a", "Ours", dataset="GSM8K"),
            line("a", "Ours", device="Xiaomi 14"),
            line("a", "Ours", metric="accuracy"),
            line("a", "Ours", unit="s"),
        ],
    )
    def test_one_that_differs_in_a_coordinate_is_not_taken(self, other: str, package: Path) -> None:
        published(package, other)
        assert [dict(column.reference) for column in made(paper={"artifact": "table1"}).columns] == [{}, {}]

    def test_two_that_fit_are_named(self, package: Path) -> None:
        published(package, line("a", "Ours"), line("b", "Ours"))
        with pytest.raises(
            InputError, match=r"column 'edgellm', fits several .*: mine\.a, mine\.b; say more"
        ):
            made(paper={"artifact": "table1"})

    def test_a_label_may_be_a_condition(self, package: Path) -> None:
        published(
            package,
            line("a", "Ours", condition="n=64; average"),
            line("b", "Ours", condition="n=128; average"),
            names='mine: {method: {edgellm: Ours}, length: {"*": {name: "*", condition: "n=*"}}}',
        )
        grid = {"setup": "t5_cnn", "method": "edgellm", "max_tokens": [64, 128]}
        spec = made(grid, labels={"length": "${max_tokens}"}, rows="length", paper={"artifact": "table1"})
        assert dict(spec.columns[0].reference) == {"64": "mine.a", "128": "mine.b"}

    def test_a_speedup_belongs_to_what_is_faster(self, package: Path) -> None:
        speedup = line("a", "Ours", "speedup", relative_to="SP", unit="x")
        published(package, speedup)
        column = {"metric": "ttft", "each": "method", "pairs": {"gain": "sp over edgellm"}}
        spec = made(columns=[column | {"paper": {"metric": "speedup"}}], paper={"artifact": "table1"})
        assert set(spec.columns[0].reference.values()) == {"mine.a"}
        assert made(columns=[column], paper={"artifact": "table1"}).columns[0].reference == {}

    def test_one_id_for_all_rows(self) -> None:
        (column,) = made(columns=[{"metric": "rouge_l", "reference": "edgellm.abstract.speedup_max"}]).columns
        assert set(column.reference) == {"t5_cnn", "mt5_squad"}

    def test_asides_are_found_for_every_row(self, package: Path) -> None:
        published(package, line("a", "Ours", dataset="CNN/Daily", condition="average"))
        aside = {"paper": {"artifact": "table1", "condition": "average", "metric": "rouge_l"}, "note": "n"}
        spec = made(aside=[aside | {"columns": ["sp", "edgellm"]}])
        assert [(a.id, a.row, a.column, a.note) for a in spec.aside] == [("mine.a", "t5_cnn", "edgellm", "n")]


class TestPackages:
    def test_values_papers_names_and_notes_are_merged(self, package: Path) -> None:
        published(package, line("a", "Ours"))
        (package / "reference" / "papers.bib").write_text("@misc{mine,\n title = {M}\n}\n", encoding="utf-8")
        (package / "reference" / "notes.yaml").write_text("frogs: A frog jumps.\n", encoding="utf-8")
        assert "mine.a" in load_cells()
        assert {"mine", "edgellm"} <= set(load_bibliography())
        assert load_names().find("mine", "method", "edgellm").name == "Ours"
        assert load_names().find("edgellm", "method", "edgellm").name == "EdgeLLM"
        assert footnotes(["frogs", "Two words."], load_notes()) == ["A frog jumps.", "Two words."]

    def test_a_clash_names_both_files(self, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
        known = next(iter(load_cells([conf_dir()])))
        (package / "reference" / "cells.csv").write_text(
            HEADER + line("a").replace("mine.a", known).replace(",mine,", ",edgellm,"), encoding="utf-8"
        )
        assert load_cells()[known].paper != "mine"
        said = capsys.readouterr().err
        assert f"'{known}'" in said
        assert str(conf_dir() / "reference" / "cells.csv") in said
        assert str(package / "reference" / "cells.csv") in said

    @pytest.mark.parametrize(
        "text", ["id,value\na,1\n", HEADER + "a,b\n", HEADER + line("a").replace("1.5", "x")]
    )
    def test_a_broken_file_is_named_and_left_out(
        self, text: str, package: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (package / "reference" / "cells.csv").write_text(text, encoding="utf-8")
        assert load_cells() == load_cells([conf_dir()])
        (warning,) = capsys.readouterr().err.splitlines()
        assert warning.startswith(f"warning: {package}/reference/cells.csv is left out")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cite": "nope"}, "cite is 'nope'; it must be a list"),
    ({"cite": [5]}, r"cite\.0 is 5; it must be a text"),
    ({"cite": ["nope"]}, "cites 'nope': there is no BibTeX entry"),
    ({"aside": 5}, "aside is 5; it must be a list"),
    ({"aside": [{"id": "nope", "note": "x"}]}, "there is no table or figure 'nope'"),
    ({"notes": "word"}, "notes is 'word'; it must be a list"),
    ({"notes": [{"a": 1}]}, r"notes\.0 is {'a': 1}; it must be a text"),
    ({"figure": {"columns": 5}}, r"figure\.columns is 5; it must be a list"),
    ({"figure": {"without": ["nope"]}}, "figure, without: there is no row 'nope'"),
    ({"title": ["a"]}, "title is .* must be a text"),
    ({"columns": []}, "has no columns"),
    (
        {"columns": [{"metric": "ttft", "digits": -3}]},
        r"columns\.0\.digits is -3; .* number from 0 to 15",
    ),
    (
        {"columns": [{"metric": "ttft", "digits": 400}]},
        r"columns\.0\.digits is 400; .* number from 0 to 15",
    ),
    ({"columns": [{"metric": "ttft", "scale": 0}]}, "has the scale 0"),
    ({"columns": [{"metric": "ttft", "relative_to": "nope"}]}, "there is no row 'nope'. Choices: sp, std"),
    ({"columns": [{"metric": "ttft", "over": {"method": "nope"}}]}, "there is no method 'nope'"),
    ({"columns": [{"metric": "ttft", "where": {"method": "nope"}}]}, "there is no method 'nope'"),
    ({"columns": [{"metric": "ttft", "reference": "nope"}]}, "there is no table or figure 'nope'"),
    ({"columns": [{"metric": "ttft", "reference": {"nope": "edgellm.table1"}}]}, "there is no row 'nope'"),
    ({"paper": {"paper": "edgellm", "artifact": "nope"}}, "there is no artifact 'nope'. Choices: fig1, "),
    ({"rows": {"by": 5}}, r"rows\.by is 5; it must be a list"),
    ({"rows": {"by": []}}, r"rows\.by is \[\]; it must be a list that is not empty"),
    ({"rows": {"by": "method", "names": ["std"]}}, r"rows\.names is \['std'\]; it must be a mapping"),
    ({"rows": {"by": "method", "names": {"std": [1]}}}, r"rows\.names\.std is \[1\]; it must be a text"),
    ({"rows": {"by": "method", "also": {"method": 5}}}, r"rows\.also\.method is 5; it must be a list"),
    ({"rows": {"by": "method", "name": "{nope}"}}, r"rows\.name: '{nope}' may name method in braces"),
    ({"rows": {"by": "method", "name": 5}}, r"rows\.name is 5; it must be a text"),
]


@pytest.mark.parametrize(("table", "said"), WRONG)
def test_a_mistake_in_a_section_is_an_error_of_the_section(table: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {"title": "T", "rows": "method", "columns": ["ttft"]}
    assert made({"method": ["std", "sp"]}, "mine", **right).title == "T"
    with pytest.raises(InputError, match=said):
        made({"method": ["std", "sp"]}, "mine", **{**right, **table})


def test_a_number_may_be_spelt_otherwise_in_a_column() -> None:
    columns = [{"metric": "ttft", "where": {"width": "4000000000.0"}}]
    table = {"title": "T", "rows": "width", "columns": columns}
    labels = {"width": "${method.width}"}
    assert made({"method.width": ["0.0", "4e9"]}, "mine", labels, **table).columns[0].where == {
        "width": "4000000000.0"
    }
