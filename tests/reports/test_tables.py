"""Tables: what is compared with what, with which marks, and how every format looks to the letter."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from invented_tables import table_spec
from records import record
from repro import commands
from repro.core import paths
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.experiments import plan, recorded_tables
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.comparison.frame import framed
from repro.reports.comparison.published import Published
from repro.reports.files import write_all
from repro.reports.formats.latex import latex, to_latex
from repro.reports.formats.layout import page
from repro.reports.formats.render import to_csv, to_markdown, to_screen
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import citations, load_bibliography
from repro.reports.reference.reference import PublishedCell, load_cells
from repro.reports.spec.spec import TableSpec
from repro.reports.tables.bands import Banded, cells_digest
from repro.reports.tables.build import SHORT, build
from repro.reports.tables.table import Table

BIBTEX = {"lever": "@misc{lever,\n  title = {L}\n}", "repro": "@misc{repro,\n  title = {R}\n}"}
SPEED = {"key": "speed", "heading": "Speed", "total": "tokens", "per": "seconds", "unit": "tokens/s"}
SPEEDUP = {**SPEED, "key": "speedup", "heading": "Speedup", "relative_to": "flash_ar", "unit": "x"}


def cell(name: str, low: float | None, high: float | None, unit: str = "tokens/s") -> PublishedCell:
    texts = dict.fromkeys(("section", "device", "model", "draft_model", "dataset", "condition"), "")
    return PublishedCell(
        **texts,
        id=name,
        paper="lever",
        artifact="table5",
        system="LEVER",
        metric="decode_throughput",
        value_low=low,
        value_high=high,
        unit=unit,
        relative_to="",
        note="",
    )


CELLS = {
    c.id: c
    for c in (
        cell("t.flash", 2.0, 2.0),
        cell("t.chain", 4.0, 4.0),
        cell("t.edge", 5.0, 8.0),
        cell("t.claim", None, 9.3, "x"),
        cell("t.ms", 500.0, 500.0, "ms"),
    )
}


def spec(**changes: Any) -> TableSpec:
    section: dict[str, Any] = {
        "title": "Invented & small",
        "rows": {
            "by": ["method"],
            "names": {"flash_ar": "Flash AR", "chain_sd": "Chain SD", "edgellm": "EdgeLLM"},
        },
        "columns": [SPEED],
    }
    return table_spec("table", {**section, **changes})


def run(method: str, tokens: int, seconds: float, prompts: int = 10, **changes: Any) -> Record:
    return record(method, {"tokens": tokens, "seconds": seconds, "prompts": prompts}, **changes)


def whole_table() -> Table:
    """A fitted baseline, a prediction, a failure, an absent row and a user's own method."""
    columns = [
        {
            **SPEED,
            "better": "higher",
            "reference": {"flash_ar": "t.flash", "chain_sd": "t.chain"},
            "tolerance": 0.1,
        },
        {"key": "rouge", "heading": "Rouge-L", "value": "rouge", "digits": 1, "timed": False},
        SPEEDUP,
    ]
    aside = [{"id": "t.claim", "note": "another_phone", "row": "chain_sd", "column": "speedup"}]
    shown = spec(
        columns=columns, aside=aside, footnotes=["Invented."], figure={"columns": ["speed", "speedup"]}
    )
    failure = {"status": "failed", "error": "Traceback (most recent call last):\n  x\nOSError: gone | away\n"}
    records = [
        run("flash_ar", 100, 50.0, costs="fitted"),
        record(
            "chain_sd",
            {"tokens": 100, "seconds": 20.0, "prompts": 10, "rouge": 99.5},
            uncertainty={"rouge": 0.25},
            clock="wall",
            finished="2026-01-02T00:00:00Z",
            commit="fedcba9876543210",
            dirty=True,
        ),
        record("edgellm", {}, **failure),
        run("mine", 100, 12.5),
    ]
    return build(shown, records, CELLS)


class TestBuild:
    def test_an_interval_of_a_loss_begins_at_its_lower_end(self) -> None:
        found = record("mine", {"difference": -1.0}, uncertainty={"difference": (-3.0, 0.5)})
        column = {"key": "loss", "heading": "Loss", "value": "difference", "scale": -1.0}
        entry = build(spec(columns=[column], aside=[]), [found], CELLS).rows[-1].entries[0]
        assert (entry.ours, entry.spread) == (1.0, (-0.5, 3.0))

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
        columns = [
            {**SPEEDUP, "key": "total", "aggregate": "total"},
            {**SPEEDUP, "key": "geomean", "aggregate": "geomean"},
            {**SPEEDUP, "key": "mbpp", "where": {"dataset": "mbpp"}},
            {**SPEED, "aggregate": "mean"},
        ]
        table = build(spec(columns=columns), by_dataset, CELLS)
        assert table.entry("edgellm", "total").ours == pytest.approx((400 / 100) / (400 / 200))
        assert table.entry("edgellm", "geomean").ours == pytest.approx((10 * (100 / 90)) ** 0.5)
        assert table.entry("edgellm", "mbpp").ours == pytest.approx(100 / 90)
        assert table.entry("edgellm", "speed").ours == pytest.approx((10 + 300 / 90) / 2)
        with pytest.raises(InputError, match=r"2 records for one row, which differ in dataset"):
            build(spec(), by_dataset, CELLS)

    @pytest.mark.parametrize("change", [{"prompts": 9}, {"inputs": {"dataset": "other"}}])
    def test_no_speedup_over_other_prompts(self, change: dict[str, Any]) -> None:
        table = build(
            spec(columns=[SPEEDUP]), [run("flash_ar", 9, 9.0), run("edgellm", 9, 3.0, **change)], CELLS
        )
        assert table.entry("edgellm", "speedup").ours is None
        assert table.footnotes == (
            "edgellm has no speedup over flash_ar: its prompts are not those of the baseline",
        )

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
        columns = [
            {**SPEED, "key": "std", "where": {"method": "std"}},
            {**speed, "key": "speedup", "unit": "x", "reference": {"t5": "t.x"}},
            {**speed, "key": "gain", "compare": "difference"},
            {**speed, "key": "less", "total": "seconds", "per": "tokens", "compare": "reduction"},
        ]
        cells = {**CELLS, "t.x": cell("t.x", 4, 4, "x")}
        table = build(spec(rows={"by": ["workload"]}, columns=columns), records, cells)
        assert [row.id for row in table.rows] == ["bart", "mt5", "t5"]
        ours = {row.id: [entry.ours for entry in row.entries] for row in table.rows}
        assert ours["t5"] == [2.0, 5.0, 8.0, 80.0]
        assert ours["mt5"] == [1.25, 4.0, 3.75, 75.0]
        assert ours["bart"] == [None] * 4, "a row without its baseline has no comparison"
        assert table.entry("t5", "speedup").ratio == 1.25

    def test_a_baseline_that_failed_or_answered_other_prompts_is_said(self) -> None:
        failure = {"status": "failed", "error": "OSError: gone"}
        records = [
            run("edgellm", 9, 1.0, labels={"workload": "t5"}),
            run("std", 9, 1.0, labels={"workload": "t5"}, **failure),
            run("edgellm", 9, 1.0, labels={"workload": "mt5"}),
            run("std", 9, 1.0, labels={"workload": "mt5"}, prompts=8),
        ]
        column = {**SPEEDUP, "relative_to": "", "where": {"method": "edgellm"}, "over": {"method": "std"}}
        table = build(spec(rows={"by": ["workload"]}, columns=[column]), records, CELLS)
        assert [row.entries[0].ours for row in table.rows] == [None, None]
        assert table.footnotes == (
            "mt5 has no speedup over std: its prompts are not those of the baseline",
            "t5 has no speedup over std: the baseline failed",
        )

    def test_one_failed_cell_of_many_costs_its_own_figures_only(self) -> None:
        """12 workloads by 8 methods, of which one cell failed: 94 figures stand, and those over it."""
        records = [
            run(f"m{i}", 100, 10.0 + i, labels={"workload": f"w{j:02}"}) for i in range(8) for j in range(12)
        ]
        broken = replace(records[3 * 12 + 5], status="failed", values={}, error="Traceback\nOSError: gone")
        columns = [{**SPEED, "key": f"m{i}", "where": {"method": f"m{i}"}} for i in range(8)]
        columns.append({**SPEED, "key": "over", "where": {"method": "m0"}, "over": {"method": "m3"}})
        columns.append({**SPEED, "key": "mean", "aggregate": "mean", "where": {"method": "m3"}})
        whole = spec(rows={"by": ["workload"]}, columns=columns[:9])
        table = build(whole, [broken if r is records[41] else r for r in records], CELLS)
        places = [(row, column.key) for row in range(12) for column in table.columns]
        absent = [place for place in places if table.entry(f"w{place[0]:02}", place[1]).ours is None]
        assert absent == [(5, "m3"), (5, "over")]
        assert table.entry("w05", "m3").failed == 1
        assert table.footnotes[0] == "w05 failed: OSError: gone"
        mean = build(spec(rows={"by": ["device"]}, columns=columns[9:]), [broken, *records[36:41]], CELLS)
        assert mean.rows[0].entries[0].failed == 1, "a mean over a failed cell is none"

    def test_rows_of_numbers_stand_in_their_order(self) -> None:
        records = [run("std", 1, 1.0, labels={"length": n}) for n in ("64", "256", "128", "all", "8.5")]
        table = build(spec(rows={"by": ["length"]}), records, CELLS)
        assert [row.id for row in table.rows] == ["8.5", "64", "128", "256", "all"]
        assert table.rows[0].labels == {"length": "8.5"}

    def test_rows_keep_the_order_of_the_spec_and_new_methods_join(self) -> None:
        table = build(spec(), [run("zeta", 1, 1.0), run("alpha", 1, 1.0), run("edgellm", 6, 1.0)], CELLS)
        assert [row.id for row in table.rows] == ["flash_ar", "chain_sd", "edgellm", "alpha", "zeta"]
        assert table.entry("flash_ar", "speed").ours is None
        assert table.entry("edgellm", "speed").ours == 6

    def test_the_newest_record_of_a_cell_counts(self) -> None:
        records = [
            run("edgellm", speed, 1.0, key=f"{speed:08x}", finished=f"2026-01-0{speed}T00:00:00Z")
            for speed in (2, 3, 1)
        ]
        table = build(spec(), records, CELLS)
        assert table.entry("edgellm", "speed").ours == 3
        assert table.footnotes == ("Left out: 2 older record(s) of the same cells.",)
        assert build(spec(), records, CELLS, keys=[records[2].key]).entry("edgellm", "speed").ours == 1

    def test_other_experiments_and_labels_stay_out(self) -> None:
        phone, board = (run("edgellm", 2, 1.0, labels={"device": device}) for device in ("phone", "board"))
        other = run("edgellm", 9, 1.0, experiment="other", labels={"device": "phone"})
        table = build(spec(where={"device": "phone"}), [phone, board, other], CELLS)
        assert table.entry("edgellm", "speed").ours == 2

    @pytest.mark.parametrize(
        ("change", "marks"),
        [
            ({}, ()),
            ({"weights": "proxy"}, ("proxy",)),
            ({"weights": "none"}, ("costs_only",)),
            ({"dequantized": True}, ("dequantized",)),
            ({"matched": {"published": 87.1}, "weights": "proxy"}, ("proxy", "matched")),
            ({"fitted": ["seconds"]}, ("fitted",)),
            ({"fitted": ["t.edge"]}, ("fitted",)),
            ({"fitted": ["rouge"]}, ()),
            ({"costs": "fitted"}, ("fitted",)),
            ({"clock": "wall", "costs": "measured"}, ("wall",)),
        ],
    )
    def test_marks(self, change: dict[str, Any], marks: tuple[str, ...]) -> None:
        columns = [{**SPEED, "reference": {"edgellm": "t.edge"}}]
        table = build(spec(columns=columns), [run("edgellm", 6, 1.0, **change)], CELLS)
        assert table.entry("edgellm", "speed").marks == marks

    def test_accuracy_carries_no_mark_of_clock_and_costs(self) -> None:
        column = {"key": "rouge", "heading": "Rouge-L", "value": "rouge", "timed": False}
        measured = record("edgellm", {"rouge": 9.0}, clock="wall", costs="fitted", weights="proxy")
        assert build(spec(columns=[column]), [measured], CELLS).entry("edgellm", "rouge").marks == ("proxy",)

    def test_a_ratio_to_a_fitted_baseline_is_a_prediction(self) -> None:
        records = [run("flash_ar", 1, 1.0, costs="fitted", weights="proxy"), run("edgellm", 3, 1.0)]
        entry = build(spec(columns=[SPEEDUP]), records, CELLS).entry("edgellm", "speedup")
        assert (entry.ours, entry.marks) == (3, ("proxy",))

    def test_the_error_figure_leaves_fitted_cells_out(self) -> None:
        columns = [
            {**SPEED, "reference": {"flash_ar": "t.flash", "chain_sd": "t.chain", "edgellm": "t.edge"}}
        ]
        records = [run("flash_ar", 9, 1.0, costs="fitted"), run("chain_sd", 5, 1.0), run("edgellm", 4, 1.0)]
        found = dict(list(framed(build(spec(columns=columns), records, CELLS).compared).groupby("group")))
        assert [(one.row, one.error) for one in found["relative"].itertuples()] == [
            ("chain_sd", pytest.approx(0.25)),
            ("edgellm", pytest.approx(-0.2)),
        ]
        assert [*found["fitted"]["row"]] == ["flash_ar"]
        only_fitted = build(spec(columns=columns), records[:1], CELLS)
        assert not framed(only_fitted.compared)["can_miss"].any()

    def test_figures_have_intervals_n_and_bands(self) -> None:
        """Twice as fast on every prompt is exactly twice as fast; the speeds themselves differ by prompt."""
        records = [run("flash_ar", 60, 60.0, prompts=6), run("edgellm", 60, 30.0, prompts=6)]

        class Lines:
            def rounds(self, key: str) -> list[dict[str, float | int | str | None]]:
                each = 2.0 if key == records[0].key else 1.0
                return [
                    {"request": f"p/{i}", "emitted": 10, "accepted": 0, "rows": 1, "drafted": 0}
                    | {"start": 0.0, "end": each * (2.5 + 2 * i)}
                    for i in range(6)
                ]

            def answers(self, key: str) -> list[dict[str, float | int | str | None]]:
                return []

        timed = [
            replace(r, values={**r.values, "decode_tokens_per_s": 60 / (45.0 * factor)})
            for r, factor in zip(records, (2.0, 1.0), strict=True)
        ]
        own = {
            "key": "own",
            "heading": "Own",
            "value": "decode_tokens_per_s",
            "unit": "tokens/s",
            "reference": {"edgellm": "t.edge"},
        }
        over = {**own, "key": "over", "relative_to": "flash_ar", "unit": "x", "reference": {}}
        shown = spec(columns=[own, over], aside=[])
        place, cells = (shown.experiment, "edgellm", "own"), [records[1].key[:SHORT]]
        bands = {place: Banded((1.0, 2.0), cells_digest(cells))}
        table = build(shown, timed, CELLS, samples=Samples(Lines()), bands=bands)
        older = {place: Banded((1.0, 2.0), cells_digest([records[0].key[:SHORT]]))}
        assert build(shown, timed, CELLS, bands=older).entry("edgellm", "own").band is None, "of other cells"
        one = table.entry("edgellm", "own")
        assert one.ours == pytest.approx(60 / 45)
        assert one.interval is not None
        assert 0.9 < one.interval[0] < 1.2 < 1.5 < one.interval[1] < 2.2
        assert (one.n, one.band, one.comparison and one.comparison.n) == (6, (1.0, 2.0), 6)
        both = table.entry("edgellm", "over")
        assert (both.ours, both.interval) == (pytest.approx(2.0), (pytest.approx(2.0), pytest.approx(2.0)))

    def test_ratios_to_ranges_and_bounds(self) -> None:
        between = Published("x", 5.0, 8.0)
        assert [between.ratio(v) for v in (4.0, 6.0, 16.0)] == [0.8, 1.0, 2.0]
        assert Published("x", None, 9.3).ratio(5.0) is None
        assert between.ratio("yes") is None

    def test_published_units_are_converted_or_refused(self) -> None:
        column = {
            "key": "t",
            "heading": "Time",
            "value": "seconds",
            "unit": "s",
            "reference": {"edgellm": "t.ms"},
        }
        entry = build(spec(columns=[column]), [run("edgellm", 1, 0.25)], CELLS).entry("edgellm", "t")
        assert entry.published == Published("t.ms", 0.5, 0.5)
        assert entry.ratio == 0.5
        with pytest.raises(InputError, match=r"'t\.ms' is in 'ms' and column 'speed' in 'tokens/s'"):
            build(spec(columns=[{**SPEED, "reference": {"edgellm": "t.ms"}}]), [], CELLS)
        with pytest.raises(InputError, match=r"'t\.eege'.*t\.edge"):
            build(spec(columns=[{**SPEED, "reference": {"edgellm": "t.eege"}}]), [], CELLS)

    def test_notes_of_records_become_footnotes(self) -> None:
        records = [
            run("edgellm", 1, 1.0, notes=["A stand-in."]),
            run("chain_sd", 1, 1.0, notes=["A stand-in."]),
        ]
        assert build(spec(), records, CELLS).footnotes == ("A stand-in.",)


class TestSpec:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"colums": []}, "there is no field 'colums'. Did you mean columns"),
            ({"columns": [{"key": "a"}]}, r"columns\.0: the field 'heading' is lacking"),
            (
                {"columns": [{**SPEED, "digits": "2"}]},
                r"columns\.0\.digits is '2'; it must be ",
            ),
            ({"columns": [{**SPEED, "better": "up"}]}, "better is 'up'; choices: higher, lower, ''"),
            ({"columns": [{**SPEED, "per": None}]}, "column 'speed' needs either"),
            ({"columns": [{**SPEEDUP, "over": {"method": "std"}}]}, "column 'speedup' has two baselines"),
            ({"columns": [{**SPEED, "compare": "difference"}]}, "column 'speed' has no baseline"),
            ({"columns": [SPEED, SPEED]}, "two columns with the key 'speed'"),
            ({"columns": "speed"}, "columns is 'speed'; it must be a list"),
            ({"rows": ["method"]}, r"rows is \['method'\]; it must be a mapping"),
            ({"figure": {"columns": ["spede"]}}, "no column 'spede'. Did you mean speed"),
        ],
    )
    def test_errors_name_the_place(self, change: dict[str, Any], sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            spec(**change)


MARKDOWN = r"""## Invented & small (measured)

| method | Speed (tokens/s) ↑ | paper | ratio | Rouge-L | Speedup (×) |
| --- | ---: | ---: | ---: | ---: | ---: |
| Flash AR | 2.00 ‡ | 2.00 | 1.00 | — | 1.00 ‡ |
| Chain SD | 5.00 w ! | 4.00 | 1.25 | 99.5 ± 0.2 | 2.50 w |
| EdgeLLM | failed [1] | — | — | failed [1] | failed [1] |
| mine | 8.00 | — | — | — | 4.00 |

| published, for another workload | paper | nearest of ours | where | difference |
| --- | --- | --- | --- | --- |
| LEVER, decode throughput | ≤ 9.3 × | 2.50 × | lever, table5 | another_phone |

- Measured: None on None, None, 2 cores. No weights computed.
- ‡ used in a fit or determined by one, so no prediction; left out of the error figure.
- w wall clock of a real device, not emulated.
- ! differs from the published value by more than the column's tolerance.
- [1] edgellm failed: OSError: gone \| away
- Invented.
- Against the paper, over 1 figure that can miss: median error 25.0%, worst 25.0% (t.chain).
- Apart from these: 1 fitted.
- A figure rests on 10 distinct texts, rows or requests; cells that read the same text count once.
- n: 4 cells, 10 prompts a cell.
- 2026-01-02, commit 0123456789, fedcba9876+, made by `python -m repro experiment=table`.
- A commit with +: code or configuration had uncommitted changes when a cell was computed.

```bibtex
@misc{lever,
  title = {L}
}

@misc{repro,
  title = {R}
}
```

LaTeX, PDF and BibTeX: `repro table table --results FOLDER --format tex pdf bib --out paper`, with the folder of results that this lies in.
"""  # noqa: E501

LATEX = r"""% needs \usepackage{booktabs,siunitx,textcomp,adjustbox}
\begin{table}
\centering\footnotesize\setlength{\tabcolsep}{3pt}
\caption{Invented \& small (measured), part 1 of 2}\label{tab:table}
\begin{adjustbox}{max width=\linewidth}
\begin{tabular}{lS[table-format=1.2,table-space-text-post={~w !}]S[table-format=1.2]S[table-format=1.2]S[table-format=2.1,table-space-text-post={~$\pm$ 0.2}]S[table-format=1.2,table-space-text-post={~\ddag{}}]}
\toprule
{\shortstack{method}} & \multicolumn{3}{c}{\shortstack{Speed\\(tokens/s) $\uparrow$}} & {\shortstack{Rouge-L}} & {\shortstack{Speedup\\($\times$)}} \\
{} & {ours} & {paper} & {ratio} & {} & {} \\
\midrule
Flash AR & 2.00{~\ddag{}} & 2.00 & 1.00 & {---} & 1.00{~\ddag{}} \\
Chain SD & 5.00{~w !} & 4.00 & 1.25 & 99.5{~$\pm$ 0.2} & 2.50{~w} \\
EdgeLLM & {failed [1]} & {---} & {---} & {failed [1]} & {failed [1]} \\
mine & 8.00 & {---} & {---} & {---} & 4.00 \\
\bottomrule
\end{tabular}
\end{adjustbox}
\end{table}
"""  # noqa: E501


class TestFormats:
    def test_markdown(self) -> None:
        assert to_markdown(page(whole_table()), list(BIBTEX.values())) == MARKDOWN

    def test_latex(self) -> None:
        text = to_latex(page(whole_table()), list(BIBTEX.values()))
        assert text.startswith(LATEX)
        assert text.endswith(
            "\\end{table}\n% @misc{lever,\n%   title = {L}\n% }\n% @misc{repro,\n%   title = {R}\n% }\n"
        )
        assert "[1] edgellm failed: OSError: gone \\textbar{} away\\par\n" in text
        assert "another\\_phone" in text

    def test_latex_escapes(self) -> None:
        assert (
            latex(r"50% of a_b & {c} \d ~ #1")
            == r"50\% of a\_b \& \{c\} \textbackslash{}d \textasciitilde{} \#1"
        )
        assert latex("$ ^ † ≤ –") == r"\$ \textasciicircum{} \dag{} $\leq$ --"

    def test_csv(self) -> None:
        lines = list(csv.DictReader(io.StringIO(to_csv(whole_table()))))
        assert len(lines) == 4 * 3 + 1
        chain = next(line for line in lines if (line["row"], line["column"]) == ("Chain SD", "speed"))
        assert chain == {
            **dict.fromkeys(("low", "high", "band_low", "band_high", "failed", "note", "certain"), ""),
            **{"n": "10", "verdict": "undetermined", "point": "fails"},
            **{"row": "Chain SD", "id": "chain_sd", "column": "speed", "unit": "tokens/s"},
            **{"better": "higher", "method": "chain_sd"},
            **{"ours": "5.0", "ratio": "1.25"},
            **{"published_low": "4.0", "published_high": "4.0", "marks": "wall off", "reference": "t.chain"},
            **{"commit": "0123456789 fedcba9876+", "date": "2026-01-02", "baseline": ""},
            "cell": record("chain_sd", {}).key[:12],
        }
        rouge = next(line for line in lines if (line["row"], line["column"]) == ("Chain SD", "rouge"))
        assert (rouge["low"], rouge["high"]) == ("99.01", "99.99")
        assert [line["failed"] for line in lines if line["row"] == "EdgeLLM"] == ["failed"] * 3
        assert [line["id"] for line in lines[::3]] == ["flash_ar", "chain_sd", "edgellm", "mine", ""]
        assert lines[-1]["column"] == "aside"
        assert lines[-1]["published_high"] == "9.3"

    def test_screen(self) -> None:
        shown = io.StringIO()
        console = Console(width=120, file=shown, color_system=None)
        console.print(to_screen(page(whole_table())))
        lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
        assert "Chain SD 5.00 w ! 4.00 1.25 99.5 ± 0.2 2.50 w" in lines
        assert "EdgeLLM failed [1] — — failed [1] failed [1]" in lines
        assert "[1] edgellm failed: OSError: gone | away" in lines

    def test_a_mark_of_every_figure_is_said_once(self) -> None:
        table = build(spec(), [run(m, 1, 1.0, weights="proxy") for m in ("flash_ar", "edgellm")], CELLS)
        text = to_markdown(page(table), [])
        assert "†" not in text
        assert text.count("- All our figures: computed by a smaller proxy's weights") == 1

    def test_a_table_without_records_is_all_absent(self) -> None:
        text = to_markdown(page(build(spec(columns=[SPEED, SPEEDUP]), [], CELLS)), [])
        assert "| Flash AR (not run) | — | — |" in text
        assert "- No records, commit none" in text


class TestFiles:
    def test_the_same_records_give_the_same_bytes(self, tmp_path: Path) -> None:
        one, two = (write_all(whole_table(), tmp_path / name, BIBTEX) for name in ("a", "b"))
        assert sorted(one) == ["csv", "md", "pdf", "png", "tex"]
        assert [path.read_bytes() for path in one.values()] == [path.read_bytes() for path in two.values()]
        assert one["png"].read_bytes().startswith(b"\x89PNG")
        assert one["pdf"].read_bytes().startswith(b"%PDF")
        assert b"Date" not in one["pdf"].read_bytes()
        assert sorted(path.name for path in (tmp_path / "a" / "table").iterdir()) == [
            *("figure.pdf", "figure.png", "table.csv", "table.md", "table.tex"),
        ]

    def test_the_picture_follows_the_figures(self, tmp_path: Path) -> None:
        table = whole_table()
        assert table.figure is not None
        without = replace(table, figure=replace(table.figure, without=("mine",)))
        first, second = (write_all(t, tmp_path / n, BIBTEX)["png"] for t, n in ((table, "a"), (without, "b")))
        assert first.read_bytes() != second.read_bytes()

    def test_folders_follow_the_experiment(self, tmp_path: Path) -> None:
        table = replace(whole_table(), experiment="lever/table5", figure=None)
        files = write_all(table, tmp_path, BIBTEX)
        assert {path.relative_to(tmp_path).as_posix() for path in files.values()} == {
            f"lever/table5/table.{name}" for name in ("md", "csv", "tex")
        }

    def test_bad_input(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no table format 'svg'"):
            write_all(whole_table(), tmp_path, BIBTEX, ["svg"])
        with pytest.raises(InputError, match="no BibTeX entry 'lever'"):
            write_all(whole_table(), tmp_path, {"repro": ""})
        (tmp_path / "file").write_text("", encoding="utf-8")
        with pytest.raises(InputError, match="cannot be written to"):
            write_all(whole_table(), tmp_path / "file", BIBTEX)


def test_every_paper_of_the_reference_has_an_entry() -> None:
    entries = load_bibliography([conf_dir()])
    papers = sorted({each.paper for each in load_cells().values()})
    assert sorted(entries) == sorted([*papers, "repro"])
    assert len(citations(papers, entries)) == 7
    assert all(text.count("{") == text.count("}") for text in entries.values())


class TestScript:
    @pytest.fixture
    def project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`repro table` over a configuration of its own, in a folder with two records."""
        conf = tmp_path / "conf"
        (conf / "experiment" / "lever").mkdir(parents=True)
        (conf / "reference").mkdir()
        (conf / "config.yaml").write_text("defaults: [_self_, {experiment: null}]\n", encoding="utf-8")
        (conf / "experiment" / "lever" / "tiny.yaml").write_text(
            "table:\n  title: Tiny\n  rows: method\n  columns: [speed]\n", encoding="utf-8"
        )
        (conf / "experiment" / "bare.yaml").write_text("seed: 1\n", encoding="utf-8")
        (conf / "reference" / "papers.bib").write_text(
            BIBTEX["repro"] + "\n@misc{lever,\n}\n", encoding="utf-8"
        )
        (conf / "metric").mkdir()
        (conf / "metric" / "tiny.yaml").write_text(
            "speed: {heading: Speed, total: tokens, per: seconds, definition: tokens a second}\n",
            encoding="utf-8",
        )
        for module in (recorded_tables, paths, plan):
            monkeypatch.setattr(module, "conf_dir", lambda: conf)
        monkeypatch.chdir(tmp_path)
        made = [run(method, 4, seconds) for method, seconds in (("flash_ar", 2.0), ("edgellm", 1.0))]
        for each in made:
            Results("outputs/results").put(each)
        Results("outputs/results").set_members("lever/tiny", [Member(each.key, each.labels) for each in made])

    def test_makes_all_tables_again(self, project: None, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.run("table", []) == 0
        shown = Path("outputs/results/lever/tiny/table.md").read_text(encoding="utf-8")
        assert "| edgellm | 4.00 |\n| flash_ar | 2.00 |" in shown
        assert "n: 2 cells" in shown
        assert "outputs/results/lever/tiny/table.tex" in capsys.readouterr().out
        assert "[lever/tiny](lever/tiny/table.md)" in Path("outputs/results/README.md").read_text(
            encoding="utf-8"
        )

    def test_also_of_cells_that_were_computed_for_others(self, project: None) -> None:
        results = Results("outputs/results")
        (key,) = (r.key for r in results.all() if r.labels["method"] == "edgellm")
        results.set_members("other", [Member(key, {"method": "ours"})])
        spec = Path("conf/experiment/lever/tiny.yaml").read_text(encoding="utf-8")
        Path("conf/experiment/other.yaml").write_text(spec, encoding="utf-8")
        assert commands.run("table", ["other"]) == 0
        shown = Path("outputs/results/other/table.md").read_text(encoding="utf-8")
        assert "| ours | 4.00 o |" in shown
        assert "- o made by an older version of a component" in shown, "these records have no versions"

    def test_a_damaged_table_is_named_and_the_others_are_made(
        self, project: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        results = Results("outputs/results")
        results.set_members("other", [Member(record.key, record.labels) for record in results.all()])
        spec = Path("conf/experiment/lever/tiny.yaml").read_text(encoding="utf-8")
        Path("conf/experiment/other.yaml").write_text(spec, encoding="utf-8")
        with Path("outputs/results/lever/tiny/members.jsonl").open("a", encoding="utf-8") as file:
            file.write("[" * 200_000 + "\n")
        assert commands.run("table", []) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: outputs/results/lever/tiny/members.jsonl, line 3, is damaged (")
        assert said.count("\n") == 1
        assert Path("outputs/results/other/table.md").exists()
        assert not Path("outputs/results/lever/tiny/table.md").exists()

    def test_formats_and_folder(self, project: None) -> None:
        assert commands.run("table", ["lever/tiny", "--format", "csv", "--out", "paper"]) == 0
        assert [path.as_posix() for path in Path("paper").rglob("*.*")] == ["paper/lever/tiny/table.csv"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["lever/tony"], "error: there is no experiment 'lever/tony'. Did you mean lever/tiny"),
            (["bare"], "error: experiment 'bare' has no `table` section"),
            (["--results", "empty"], "error: there are no tables in empty; experiments: bare, lever/tiny"),
            (
                ["--convert", "empty"],
                "error: empty has no records of the former layout, so there is nothing to convert",
            ),
        ],
    )
    def test_bad_input(
        self, project: None, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
    ) -> None:
        assert commands.run("table", arguments) == 2
        assert sentence in capsys.readouterr().err
