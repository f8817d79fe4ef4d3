"""Tables: what is compared with what, with which marks; the same row in every format; the command."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from invented_tables import built, cell, column, table_spec
from latex_structure import cells, tabulars
from records import record
from repro import commands
from repro.core import paths
from repro.core.errors import InputError
from repro.device.facts.holds import UNMEASURED
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.comparison.frame import to_frame
from repro.reports.files import write_all
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import page
from repro.reports.formats.render import to_csv, to_markdown, to_screen
from repro.reports.tables.bands import Band, cells_digest
from repro.reports.tables.build import SHORT_LENGTH, build
from repro.reports.tables.known import known_values
from repro.reports.tables.table import Table

BIBTEX = {"lever": "@misc{lever,\n  title = {L}\n}", "repro": "@misc{repro,\n  title = {R}\n}"}
SPEED = {"key": "speed", "heading": "Speed", "total": "tokens", "per": "seconds", "unit": "tokens/s"}
SPEEDUP = {**SPEED, "key": "speedup", "heading": "Speedup", "relative_to": "flash_ar", "unit": "x"}
FAILED = {"status": "failed", "error": "Traceback (most recent call last):\n  x\nOSError: gone | away\n"}

PUBLISHED = {"system": "LEVER", "metric": "decode_throughput"}
CELLS = {
    name: replace(cell(name, low, high, unit, **PUBLISHED), paper="lever", artifact="table5")
    for name, low, high, unit in (
        ("t.flash", 2.0, 2.0, "tokens/s"),
        ("t.chain", 4.0, 4.0, "tokens/s"),
        ("t.edge", 5.0, 8.0, "tokens/s"),
        ("t.up_to", None, 9.3, "tokens/s"),
    )
}


def made(records: Sequence[Record], *columns: dict[str, Any], **section: Any) -> Table:
    """The table of these columns, by default of the speed, over records."""
    names = {"flash_ar": "Flash AR", "chain_sd": "Chain SD", "edgellm": "EdgeLLM"}
    return built(
        records, columns or [SPEED], CELLS, **{"rows": {"by": ["method"], "names": names}, **section}
    )


def by(*labels: str) -> dict[str, Any]:
    """A section whose rows are named by these labels."""
    return {"rows": {"by": labels}}


def run(method: str, tokens: int, seconds: float, prompts: int = 10, **changes: Any) -> Record:
    return record(method, {"tokens": tokens, "seconds": seconds, "prompts": prompts}, **changes)


def lines(table: Table) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of its table.csv by the row's id and the column's key."""
    return {(line["id"], line["column"]): line for line in csv.DictReader(io.StringIO(to_csv(table)))}


def figures(table: Table) -> dict[str, list[float | None]]:
    """Our figures by the row's id, as table.csv has them."""
    rows: dict[str, list[float | None]] = {}
    for (row, _), line in lines(table).items():
        rows.setdefault(row, []).append(float(line["ours"]) if line["ours"] else None)
    return rows


class TestBuild:
    def test_a_speedup_is_totals_over_totals(self) -> None:
        by_dataset = [
            run(method, tokens, seconds, labels={"dataset": dataset}, inputs={"dataset": dataset})
            for method, dataset, tokens, seconds in (
                ("flash_ar", "gsm8k", 100, 100.0),
                ("flash_ar", "mbpp", 300, 100.0),
                ("edgellm", "gsm8k", 100, 10.0),
                ("edgellm", "mbpp", 300, 90.0),
            )
        ]
        columns = (
            {**SPEEDUP, "key": "total", "aggregate": "total"},
            {**SPEEDUP, "key": "geomean", "aggregate": "geomean"},
            {**SPEEDUP, "key": "mbpp", "where": {"dataset": "mbpp"}},
            {**SPEED, "aggregate": "mean"},
        )
        right = [(400 / 100) / (400 / 200), (10 * (100 / 90)) ** 0.5, 100 / 90, (10 + 300 / 90) / 2]
        assert figures(made(by_dataset, *columns))["edgellm"] == pytest.approx(right)
        with pytest.raises(InputError, match=r"2 records for one row, which differ in dataset"):
            made(by_dataset)

    def test_a_figure_over_the_same_row_s_under_other_labels(self) -> None:
        """Rows are workloads, columns methods, and the baseline is the row's own."""
        records = [
            run(method, 100, seconds, labels={"workload": workload}, inputs={"dataset": workload})
            for method, workload, seconds in (
                ("std", "t5", 50.0),
                ("edgellm", "t5", 10.0),
                ("std", "mt5", 80.0),
                ("edgellm", "mt5", 20.0),
                ("edgellm", "bart", 20.0),
            )
        ]
        speed = {**SPEED, "where": {"method": "edgellm"}, "over": {"method": "std"}}
        columns = (
            {**SPEED, "key": "std", "where": {"method": "std"}},
            {**speed, "key": "speedup", "unit": "x"},
            {**speed, "key": "gain", "compare": "difference"},
            {**speed, "key": "less", "total": "seconds", "per": "tokens", "compare": "reduction"},
        )
        assert figures(made(records, *columns, **by("workload"))) == {
            "bart": [None] * 4,  # without its baseline there is no comparison
            "mt5": [1.25, 4.0, 3.75, 75.0],
            "t5": [2.0, 5.0, 8.0, 80.0],
        }

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"prompts": 9}, "its prompts are not those of the baseline"),
            ({"inputs": {"dataset": "other"}}, "its prompts are not those of the baseline"),
            (FAILED, "the baseline failed"),
        ],
    )
    def test_there_is_none_over_other_prompts_or_a_failure(self, change: dict[str, Any], reason: str) -> None:
        table = made([run("edgellm", 9, 3.0), run("flash_ar", 9, 9.0, **change)], SPEEDUP)
        assert figures(table)["edgellm"] == [None]
        assert f"edgellm has no speedup over flash_ar: {reason}" in table.footnotes

    def test_a_failed_cell_costs_its_own_figures_only(self) -> None:
        records = [
            run(method, 100, 10.0, labels={"workload": w}, **(FAILED if (method, w) == ("b", "t5") else {}))
            for method in "abc"
            for w in ("bart", "t5")
        ]
        columns = [{**SPEED, "key": method, "where": {"method": method}} for method in "abc"]
        columns.append({**SPEED, "key": "over", "where": {"method": "a"}, "over": {"method": "b"}})
        table = made(records, *columns, **by("workload"))
        assert figures(table) == {"bart": [10, 10, 10, 1], "t5": [10, None, 10, None]}
        assert table.footnotes[0] == "t5 failed: OSError: gone | away"
        means = made(records, {**SPEED, "aggregate": "mean"}, **by("method"))
        assert figures(means) == {"a": [10], "b": [None], "c": [10]}, "a mean over a failed cell is none"

    def test_a_speedup_is_over_the_row_with_other_labels_and_otherwise_the_same(self) -> None:
        """20 over 10 and 20 over 8; of a row that lacks a label, that label does not matter."""
        records = [
            run("std", 10, 1.0, labels={"device": "A"}),
            run("std", 8, 1.0, labels={"device": "B"}),
            run("sd", 20, 1.0, labels={"device": "A", "length": "2"}),
            run("sd", 20, 1.0, labels={"device": "B", "length": "4"}),
        ]
        speedups = {**SPEEDUP, "relative_to": {"method": "std"}}
        right = {"std / A / ": [1.0], "std / B / ": [1.0], "sd / A / 2": [2.0], "sd / B / 4": [2.5]}
        assert figures(made(records, speedups, **by("method", "device", "length"))) == right

    def test_rows_stand_as_the_section_says_then_by_number_then_by_name(self) -> None:
        """Those of other labels than the section's stay out."""
        methods = ["all", "64", "256", "edgellm", "128", "8.5", "flash_ar"]
        records = [run(method, 1, 1.0, labels={"device": "phone"}) for method in methods]
        board = run("other", 1, 1.0, labels={"device": "board"})
        table = made([board, *records], where={"device": "phone"})
        assert [*figures(table)] == ["flash_ar", "chain_sd", "edgellm", "8.5", "64", "128", "256", "all"]

    def test_the_newest_record_of_a_cell_counts(self) -> None:
        records = [
            run("edgellm", speed, 1.0, key=f"{speed:08x}", finished=f"2026-01-0{speed}T00:00:00Z")
            for speed in (2, 3, 1)
        ]
        table = made(records, **by("method"))
        assert figures(table) == {"edgellm": [3]}
        assert table.footnotes == ("Left out: 2 older record(s) of the same cells.",)

    @pytest.mark.parametrize(
        ("change", "of_baseline", "marks"),
        [
            ({}, {}, ["", "", ""]),
            ({"weights": "none"}, {}, ["costs_only"] * 3),
            ({"matched": {"published": 87.1}, "weights": "proxy"}, {}, ["proxy matched"] * 3),
            ({"fitted": ["seconds"]}, {}, ["fitted", "", "fitted"]),
            ({"fitted": ["t.edge"]}, {}, ["fitted", "", ""]),
            ({"clock": "wall", "costs": "fitted"}, {}, ["fitted wall", "", "fitted wall"]),
            # a ratio to a fitted baseline is a prediction
            ({}, {"costs": "fitted", "weights": "proxy"}, ["", "", "proxy"]),
        ],
    )
    def test_a_figure_has_the_marks_of_what_it_rests_on(
        self, change: dict[str, Any], of_baseline: dict[str, Any], marks: list[str]
    ) -> None:
        """Of a speed with a published value, of a text's value and of a ratio."""
        records = [run("flash_ar", 1, 1.0, **of_baseline), run("edgellm", 6, 1.0, **change)]
        speed = {**SPEED, "reference": {"edgellm": "t.edge"}}
        table = lines(made(records, speed, column("tokens", timed=False), SPEEDUP))
        names = ("speed", "tokens", "speedup")
        assert [table["edgellm", name]["marks"] for name in names] == marks

    @pytest.mark.parametrize(
        ("sentences", "marks"),
        [
            (["600 rows (numbers hold for 1 to 512)"], "extrapolated"),
            ([f"9 {UNMEASURED} 1 and 512"], "interpolated"),
            (
                [f"9 {UNMEASURED} 1 and 512", "600 rows (numbers hold for 1 to 512)"],
                "extrapolated interpolated",
            ),
        ],
    )
    def test_rows_outside_and_rows_between_have_one_sign_and_words_of_their_own(
        self, sentences: list[str], marks: str
    ) -> None:
        said = {run("edgellm", 6, 1.0).key: [f"decode on cpu: {sentence}" for sentence in sentences]}
        section = {"title": "T", "rows": {"by": ["method"]}, "columns": [SPEED]}
        table = build(
            table_spec("table", section), [run("edgellm", 6, 1.0)], {}, [*said], outside_phases=said
        )
        assert lines(table)["edgellm", "speed"]["marks"] == marks
        text = to_markdown(page(table), [])
        assert " x " in text
        assert " x x" not in text
        assert ("were not measured" in text) == ("interpolated" in marks)

    def test_the_error_figure_leaves_fitted_cells_out(self) -> None:
        reference = {"flash_ar": "t.flash", "chain_sd": "t.chain", "edgellm": "t.edge"}
        records = [run("flash_ar", 9, 1.0, costs="fitted"), run("chain_sd", 5, 1.0), run("edgellm", 4, 1.0)]
        compared = to_frame(made(records, {**SPEED, "reference": reference}).comparisons)
        predicted = compared[compared["can_miss"]]
        assert [*predicted["row"]] == ["chain_sd", "edgellm"]
        assert [*predicted["error"]] == pytest.approx([0.25, -0.2])
        assert [*compared["group"]] == ["relative", "relative", "fitted"]

    def test_an_interval_of_a_loss_begins_at_its_lower_end(self) -> None:
        lost = record("mine", {"loss": -1.0}, uncertainty={"loss": (-3.0, 0.5)})
        line = lines(made([lost], column("loss", scale=-1.0)))["mine", "loss"]
        assert [line[name] for name in ("ours", "low", "high")] == ["1.0", "-0.5", "3.0"]

    def test_a_band_is_of_the_cells_that_a_figure_is_made_from(self) -> None:
        records = [record(method, {"speed": 2.0}) for method in ("flash_ar", "edgellm")]
        spec = table_spec("table", {"title": "T", **by("method"), "columns": [column("speed")]})
        band = Band((1.0, 3.0), cells_digest([records[1].key[:SHORT_LENGTH]]))
        bands = {("table", method, "speed"): band for method in ("edgellm", "flash_ar")}
        found = lines(build(spec, records, {}, bands=bands))
        assert [found[row, "speed"]["band_low"] for row in ("edgellm", "flash_ar")] == ["1.0", ""]

    @pytest.mark.parametrize(
        ("speeds", "changes", "uncertainty", "best"),
        [
            ((10.0, 20.001, 20.0), {"digits": 3}, {}, [1]),
            ((10.0, 20.001, 20.0), {"digits": 2}, {}, []),  # a tie of figures without intervals
            ((10.0, 20.001, 20.0), {"digits": 2}, {"speed": (19.0, 21.0)}, [1, 2]),
            ((10.0, 20.0, 30.0), {"better": "lower"}, {}, [0]),
            ((10.0, 20.0, 30.0), {"better": ""}, {}, []),
            ((10.0, 10.0, 10.0), {}, {"speed": (9.0, 11.0)}, []),
        ],
    )
    def test_the_best_of_a_column_is_marked(
        self, speeds: tuple[float, ...], changes: dict[str, Any], uncertainty: dict[str, Any], best: list[int]
    ) -> None:
        records = [record(f"m{i}", {"speed": v}, uncertainty=uncertainty) for i, v in enumerate(speeds)]
        table = made(records, column("speed", **{"better": "higher", **changes}), best=True, **by("method"))
        assert [i for i, row in enumerate(table.rows) if "best" in row.entries[0].marks] == best
        assert (" ★ |" in to_markdown(page(table), [])) == bool(best)

    def test_a_text_that_another_arithmetic_computed_is_not_compared_with_the_targets(self) -> None:
        """The record keeps its figure; the table has that of the plain method alone, and says why."""
        std, mllm = (
            record(name, {"exact_match": 1.0}, config={"method": {"name": name}})
            for name in ("std", "mllm_npu")
        )
        table = made([std, mllm], column("exact_match"), **by("method"))
        assert figures(table) == {"std": [1.0], "mllm_npu": [None]}
        (reason,) = [note for note in table.footnotes if note.startswith("mllm_npu computes with 8-bit")]
        assert "did not run" in reason
        assert "exact_match" not in known_values(mllm)
        assert mllm.figure("exact_match") == known_values(std)["exact_match"] == 1.0


def whole_table() -> Table:
    """A fitted baseline, a measured figure that is off, and a failure; a published value aside, a picture."""
    reference = {"flash_ar": "t.flash", "chain_sd": "t.chain"}
    speed = {**SPEED, "better": "higher", "reference": reference, "tolerance": 0.1}
    rouge = column("rouge", digits=1, timed=False)
    wall = {"clock": "wall", "finished": "2026-01-02T00:00:00Z", "commit": "fedcba9876543210", "dirty": True}
    chain = {"tokens": 100, "seconds": 20.0, "prompts": 10, "rouge": 99.5}
    records = [
        run("flash_ar", 100, 50.0, costs="fitted", notes=["A stand-in."]),
        record("chain_sd", chain, uncertainty={"rouge": 0.25}, notes=["A stand-in."], **wall),
        record("edgellm", {}, **FAILED),
    ]
    aside = [{"id": "t.up_to", "note": "another_phone", "row": "chain_sd", "column": "speed"}]
    figure = {"columns": ["speed", "speedup"]}
    return made(records, speed, rouge, SPEEDUP, aside=aside, figure=figure, title="Invented & small")


class TestFormats:
    def test_a_row_is_the_same_in_every_format(self) -> None:
        table, screen = whole_table(), io.StringIO()
        Console(width=120, file=screen, color_system=None).print(to_screen(page(table)))
        printed = [" ".join(line.split()) for line in screen.getvalue().splitlines()]
        markdown = to_markdown(page(table), list(BIBTEX.values())).splitlines()
        latex = to_latex(page(table), list(BIBTEX.values()))
        rows = {cells(row)[0]: cells(row)[1:] for row in tabulars(latex)[0][1]}
        assert "| Chain SD | 5.00 w ! | 4.00 | 1.25 | 99.5 ± 0.2 | 2.50 w |" in markdown
        assert "Chain SD 5.00 w ! 4.00 1.25 99.5 ± 0.2 2.50 w" in printed
        assert rows["Chain SD"] == ["5.00{~w !}", "4.00", "1.25", r"99.5{~$\pm$ 0.2}", "2.50{~w}"]
        assert "| EdgeLLM | failed [1] | — | — | failed [1] | failed [1] |" in markdown
        assert rows["EdgeLLM"] == ["{failed [1]}", *["{---}"] * 2, *["{failed [1]}"] * 2]
        assert r"- [1] edgellm failed: OSError: gone \| away" in markdown
        assert "[1] edgellm failed: OSError: gone | away" in printed
        assert "[1] edgellm failed: OSError: gone \\textbar{} away\\par\n" in latex
        assert markdown.count("- A stand-in.") == 1, "two records have it"
        assert latex.endswith("% @misc{lever,\n%   title = {L}\n% }\n% @misc{repro,\n%   title = {R}\n% }\n")
        chain, failed = (lines(table)[row, "speed"] for row in ("chain_sd", "edgellm"))
        names = ("ours", "ratio", "n", "verdict", "point", "marks", "commit")
        said = "5.0 1.25 10 undetermined fails wall off 0123456789 fedcba9876+"
        assert " ".join(chain[name] for name in names) == said
        assert (chain["cell"], failed["failed"]) == (record("chain_sd", {}).key[:12], "failed")
        rouge = lines(table)["chain_sd", "rouge"]
        assert (rouge["low"], rouge["high"]) == ("99.01", "99.99"), "1.96 standard errors"
        assert lines(table)["", "aside"]["published_high"] == "9.3"

    def test_each_format_has_its_file(self, tmp_path: Path) -> None:
        table = replace(whole_table(), experiment="lever/table5")
        assert {*write_all(table, tmp_path, BIBTEX)} == {"csv", "md", "tex", "png", "pdf"}
        assert (tmp_path / "lever" / "table5" / "figure.png").is_file()
        assert {*write_all(replace(table, figure=None), tmp_path, BIBTEX)} == {"csv", "md", "tex"}
        for folder, bibtex, formats, sentence in (
            (tmp_path, BIBTEX, ["svg"], "no table format 'svg'"),
            (tmp_path, {"repro": ""}, ["md"], "no BibTeX entry 'lever'"),
            (tmp_path / "lever" / "table5" / "table.md", BIBTEX, ["md"], "cannot be written to"),
        ):
            with pytest.raises(InputError, match=sentence):
                write_all(table, folder, bibtex, formats)


FOLDER = Path("outputs/results")


class TestCommand:
    @pytest.fixture
    def results(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
        """Two cells of the quickstart where `repro table` reads, one under another label; a second table."""
        monkeypatch.chdir(tmp_path)
        results = Results(FOLDER)
        flash, lever = (
            record(method, {"decode_tokens": 4, "prompts": 10, "decode_seconds": seconds})
            for method, seconds in (("flash_ar", 2.0), ("lever", 1.0))
        )
        results.put(flash)
        results.put(lever)
        members = [Member(flash.key, flash.labels), Member(lever.key, {"method": "mine"})]
        results.set_members("quickstart", members)
        results.set_members("lever/table1", members[:1])
        return results

    def test_without_a_name_all_tables_are_made_again(
        self, results: Results, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Also of cells that were computed for others; without versions, these are older."""
        assert commands.run("table", ["--format", "md", "csv"]) == 0
        assert "outputs/results/quickstart/table.md" in capsys.readouterr().out
        with (FOLDER / "quickstart" / "table.csv").open(newline="", encoding="utf-8") as file:
            speeds = [line for line in csv.DictReader(file) if line["column"] == "speed" and line["ours"]]
        said = {line["id"]: (line["ours"], line["marks"]) for line in speeds}
        assert said == {"flash_ar": ("2.0", "older"), "mine": ("4.0", "older")}
        assert "[quickstart](quickstart/table.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")

    def test_a_damaged_table_is_named_and_the_others_are_made(
        self, results: Results, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with (FOLDER / "quickstart" / "members.jsonl").open("a", encoding="utf-8") as file:
            file.write("[" * 200_000 + "\n")
        assert commands.run("table", ["--format", "csv"]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("error: outputs/results/quickstart/members.jsonl, line 3, is damaged (")
        made = [path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("table.csv")]
        assert made == ["lever/table1"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ("lever/tabel5", "there is no experiment 'lever/tabel5'. Did you mean lever/table5"),
            ("mine/bare", "experiment 'mine/bare' has no `table` section"),
            ("--results empty", "there are no tables in empty; experiments: compare/agreement, "),
            ("--convert empty", "empty has no records of the former layout, so there is nothing to convert"),
        ],
    )
    def test_a_table_that_cannot_be_made_is_said(
        self,
        arguments: str,
        sentence: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(paths, "_folders_of_packages", lambda: (tmp_path,))
        (tmp_path / "experiment" / "mine").mkdir(parents=True)
        (tmp_path / "experiment" / "mine" / "bare.yaml").write_text("seed: 1\n", encoding="utf-8")
        assert commands.run("table", arguments.split()) == 2
        assert f"error: {sentence}" in capsys.readouterr().err
