"""Pictures: each kind shows the figures where they belong, published ones too, the same every time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from invented_tables import table_spec
from records import record
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.reports.figures.charts import Series, series
from repro.reports.figures.figure import KINDS, draw, frame
from repro.reports.figures.paint import BASELINES, OURS, canvas, colour
from repro.reports.figures.palette import SYSTEMS, Palette, load_palette
from repro.reports.figures.shown import Shown, figure_title, origin, shown
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.build import build
from repro.reports.tables.table import Table

NAMES = ("section", "device", "model", "draft_model", "dataset", "condition", "system", "relative_to", "note")
PUBLISHED = PublishedCell(
    **dict.fromkeys(NAMES, ""),
    **{"id": "p.range", "paper": "edgellm", "artifact": "fig17", "metric": "latency", "unit": "s"},
    value_low=3.0,
    value_high=5.0,
)
METHODS = ("sp", "edgellm")


def table(figure: dict[str, Any], **changes: Any) -> Table:
    """Two methods' seconds at three lengths on two devices: 1, 2, 3 times the method's and the device's."""
    records = [
        record(method, {"load": i * j * k, "compute": 0.5}, labels={"device": device, "length": f"{64 * k}"})
        for i, method in enumerate(METHODS, 1)
        for j, device in ((1, "phone"), (10, "board"))
        for k in (1, 2, 4)
        if (method, device, k) != ("edgellm", "board", 2)
    ]
    columns = [
        {"key": m, "heading": m.upper(), "value": "load", "unit": "s", "where": {"method": m}}
        for m in METHODS
    ]
    columns[1]["reference"] = {"phone / 256": "p.range"}
    section = {"title": "T", "rows": {"by": ["device", "length"]}, "columns": columns, "figure": figure}
    return build(table_spec("table", {**section, **changes}), records, {"p.range": PUBLISHED})


PALETTE = Palette("edgellm", ("EdgeLLM", "Std", "SP"))


def content(given: Table, palette: Palette = PALETTE) -> Shown:
    assert given.figure is not None
    return shown(given, given.figure, palette)


LINES = {"kind": "lines", "columns": ["sp", "edgellm"], "x": "length", "panel": "device"}
PARTS = [{"key": k, "heading": k, "value": k, "unit": "s"} for k in ("load", "compute")]
JOULES = [PARTS[0], {**PARTS[1], "unit": "J"}]
STACKED = {
    "columns": PARTS,
    "where": {"method": "sp"},
    "figure": {"kind": "stacked", "columns": ["load", "compute"], "heading": "Seconds"},
}
GROUPED = {"kind": "grouped", "columns": ["sp", "edgellm"]}
KIND = {
    "bars": table({"columns": ["sp"]}),
    "grouped": table(GROUPED),
    "stacked": table(**STACKED),
    "dots": table({"kind": "dots", "columns": ["sp", "edgellm"], "log": True}),
    "lines": table(LINES),
    "curves": table({"kind": "curves", "columns": ["edgellm"], "x": "sp", "panel": "device"}),
}
SP, EDGELLM = BASELINES[1], OURS
"""Their colours: the second baseline of the list, and the paper's own."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_table_gives_the_same_bytes_and_other_figures_give_others(kind: str) -> None:
    given = KIND[kind]
    first = draw(given)
    assert first.startswith(b"\x89PNG")
    assert len(first) < 60_000
    assert draw(given) == first
    assert draw(replace(given, rows=given.rows[:-1])) != first


def test_a_vector_file_names_no_date() -> None:
    pdf = draw(KIND["grouped"], "pdf")
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
    assert pdf == draw(KIND["grouped"], "pdf")


def bars(kind: str) -> list[tuple[float, float, str]]:
    """Left edge, width and colour of every bar, from the top."""
    picture, _ = KINDS[kind](content(KIND[kind]))
    found = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    found.sort(key=lambda bar: (round(bar.get_y() + bar.get_height() / 2, 6), bar.get_x()))
    return [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in found]


def marks(panel: Axes, shape: str) -> list[list[tuple[float, float]]]:
    """Where lines with markers of a shape stand: our dots (`o`), or published diamonds (`D`)."""
    return [[*map(tuple, line.get_xydata())] for line in panel.lines if line.get_marker() == shape]  # type: ignore[union-attr]


SHOWN = {SP: [10, 20, 40, 1, 2, 4], EDGELLM: [20, 80, 2, 4, 8]}
"""The values by colour; the board has none of EdgeLLM at length 128."""


def test_a_group_has_a_bar_a_column_and_on_a_logarithmic_axis_a_dot() -> None:
    assert {shade: [w for _, w, own in bars("grouped") if own == shade] for shade in SHOWN} == SHOWN
    picture, keys = KINDS["grouped"](content(table({**GROUPED, "log": True})))
    (panel,) = picture.axes
    assert panel.get_xscale() == "log"
    assert not panel.patches, "a bar would begin anywhere"
    assert sorted(x for points in marks(panel, "o") for x, _ in points) == sorted(
        [*SHOWN[SP], *SHOWN[EDGELLM]]
    )
    assert {key.get_marker() for key in keys if isinstance(key, Line2D)} == {"o", "D"}, "as they are drawn"


@pytest.mark.parametrize(
    ("values", "scale"), [((1.0, 20.0), "linear"), ((0.3, 629.0), "log"), ((0.0, 629.0), "linear")]
)
def test_a_bar_that_would_be_invisible_beside_others_is_a_dot(values: tuple[float, ...], scale: str) -> None:
    records = [record(m, {"x": value}) for m, value in zip(METHODS, values, strict=True)]
    columns = [{"key": "x", "heading": "X", "value": "x"}]
    section = {"title": "T", "rows": {"by": ["method"]}, "columns": columns, "figure": {"columns": ["x"]}}
    given = build(table_spec("t", section), records, {}, {each.key for each in records})
    picture, _ = KINDS["bars"](content(given))
    (panel,) = picture.axes
    assert (panel.get_xscale(), bool(panel.patches)) == (scale, scale == "linear")


def test_a_stack_s_parts_begin_where_the_ones_before_end() -> None:
    one, two = colour(0), colour(1)
    assert bars("stacked")[:4] == [(0, 10, one), (10, 0.5, two), (0, 20, one), (20, 0.5, two)]


def test_a_line_is_a_column_in_the_panel_of_its_label_by_rising_x() -> None:
    found = series(content(table({**LINES, "names": {"phone": "A phone"}})))
    places = {each: [(x, entry.ours) for x, entry in points] for each, points in found.items()}
    own = [("SP", "SP"), ("EDGELLM", "EdgeLLM")]
    assert list(places) == [Series(p, *names) for p in ("A phone", "board") for names in own]
    assert places[Series("A phone", "SP", "SP")] == [(64, 1), (128, 2), (256, 4)]
    assert places[Series("board", "EDGELLM", "EdgeLLM")] == [(64, 20), (128, None), (256, 80)]
    without = series(content(table({**LINES, "columns": ["sp"], "panel": ""})))
    assert list(without) == [Series("", name, "SP", name) for name in ("board", "phone")], "no axis: lines"


def test_published_values_stand_at_their_x() -> None:
    picture, keys = KINDS["lines"](content(KIND["lines"]))
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["board", "phone"]
    assert [marks(axes, "D") for axes in picture.axes] == [[], [[(256, 3), (256, 5)]]]
    (diamonds,) = (line for line in picture.axes[1].lines if line.get_marker() == "D")
    assert to_hex(diamonds.get_color()) == EDGELLM, "the published value of that line"
    assert [key.get_label() for key in keys] == ["SP", "EDGELLM", "published"]
    assert {line.get_markerfacecolor() for line in (diamonds, keys[-1])} == {"none"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("figure", "changes", "sentence"),
    [
        ({**LINES, "x": "lenght"}, {}, "no label 'lenght'. Did you mean length"),
        ({**LINES, "panel": "method"}, {}, "no label 'method'"),
        ({"columns": ["sp"], "kind": "stacked", "log": True}, {}, "has no logarithmic stacked"),
        ({"columns": ["sp"], "kind": "dots", "level": "edgellm"}, {}, "dots have no `level`"),
        ({"columns": ["sp"], "kind": "grouped", "level": "chance"}, {}, "no column 'chance'"),
        ({**LINES, "kind": "pie"}, {}, "kind is 'pie'; choices: bars, grouped, stacked, dots, lines"),
        (
            STACKED["figure"],
            {**STACKED, "columns": [PARTS[0], {**PARTS[1], "unit": "J"}]},
            "'J', 's' on one axis",
        ),
        (
            {**LINES, "x": "device", "panel": "length"},
            {},
            "row 'board / 64' has no number as its label 'device'",
        ),
    ],
)
def test_bad_input(figure: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draw(table(**{**changes, "figure": figure}))


def row_of(values: dict[str, Any], figure: dict[str, Any], column: dict[str, Any], **changes: Any) -> Table:
    """One method's values, published ones and uncertainties under one column."""
    cells, columns = {}, [{"key": "x", "heading": "X", "value": "x", "better": "higher", **column}]
    if "published" in values:
        low, high = values["published"]
        cells = {"p": replace(PUBLISHED, id="p", value_low=low, value_high=high, unit=column.get("unit", ""))}
        columns[0]["reference"] = {"edgellm": "p"}
    uncertainty = {"x": values["spread"]} if "spread" in values else {}
    section = {"title": "EdgeLLM Fig. 1: T", "rows": {"by": ["method"]}, "columns": columns, "figure": figure}
    one = record("edgellm", {"x": values["ours"]}, uncertainty=uncertainty, **changes)
    return build(table_spec("edgellm/t", section), [one], cells, {one.key})


def drawn(given: Table) -> tuple[str, Axes]:
    """The one value that is written in a figure, and its panel."""
    assert given.figure is not None
    picture, _ = KINDS[given.figure.kind](content(given))
    (text,) = picture.axes[0].texts
    return text.get_text(), picture.axes[0]


@pytest.mark.parametrize("kind", ["bars", "grouped"])
@pytest.mark.parametrize(
    ("values", "column", "words", "axis", "interval"),
    [
        ({"ours": 20.0, "published": (90.0, 90.0)}, {"digits": 1}, "20.0", (0, 90), []),
        ({"ours": 20.0, "published": (22.0, 90.0)}, {"digits": 1}, "20.0", (0, 90), []),
        ({"ours": 20.0, "spread": (15.0, 30.0)}, {"digits": 0}, "20", (0, 30), [15.0, 30.0]),
        ({"ours": 20.0, "spread": 4.0}, {"digits": 0}, "20", (0, 24), [16.0, 24.0]),
        ({"ours": -5.0}, {"digits": 1}, "-5.0", (-5, 0), []),
        ({"ours": 100.0, "published": (96.0, 96.0)}, {"unit": "%"}, "100.00", (0, 100), []),
        ({"ours": 0.0}, {"digits": 3}, "0", (0, 1), []),
        ({"ours": -0.0001}, {"digits": 3}, "0.000", (-0.0001, 0), []),
    ],
)
def test_a_bar_shows_our_value_its_interval_and_what_was_published(
    kind: str,
    values: dict[str, Any],
    column: dict[str, Any],
    words: str,
    axis: tuple[float, float],
    interval: list[float],
) -> None:
    text, panel = drawn(row_of(values, {"kind": kind, "columns": ["x"]}, column))
    assert (text, panel.get_xlim()) == (words, axis)
    assert [bar.get_width() for bar in panel.patches if isinstance(bar, Rectangle)] == [values["ours"]]
    diamonds = [x for points in marks(panel, "D") for x, _ in points]
    assert diamonds == [*values.get("published", ())]
    segments = [c.get_segments() for c in panel.collections]  # type: ignore[attr-defined]
    assert [x for lines in segments if len(lines) == 1 for x, _ in lines[0]] == interval


def test_a_system_has_one_colour_in_every_kind_and_the_paper_s_own_stands_out() -> None:
    picture, keys = KINDS["lines"](content(KIND["lines"]))
    shades = {key.get_label(): to_hex(key.get_color()) for key in keys[:2]}  # type: ignore[attr-defined]
    assert shades == {"SP": SP, "EDGELLM": EDGELLM}
    _, keys = KINDS["dots"](content(KIND["dots"]))
    assert [to_hex(key.get_color()) for key in keys[:2]] == [SP, EDGELLM]  # type: ignore[attr-defined]
    assert {shade for *_, shade in bars("grouped")} == {SP, EDGELLM}
    frame(picture, "T", keys, "below", own="EDGELLM")
    (legend,) = picture.legends
    assert {text.get_text(): text.get_fontweight() for text in legend.get_texts()}["EDGELLM"] == "bold"
    assert not {SP, EDGELLM} & {colour(i) for i in range(8)}, "no other series looks like a system"


def test_every_system_of_a_paper_has_a_colour_of_its_own() -> None:
    """A name that colours.yaml lacks would take another colour in each figure."""
    names = read_mapping(conf_dir() / "reference" / "names.yaml")
    papers = [paper for paper in names if paper != "any"]
    assert len(papers) >= 6
    for paper in papers:
        palette = load_palette(str(paper))
        there = {
            one
            for label in SYSTEMS
            for value in names[paper].get(label, {})
            for one in palette.systems_of({label: str(value)})
        }
        assert there <= set(palette.systems), paper
        assert palette.colours([palette.own]) == {palette.own: OURS}
        assert len(set(palette.colours(palette.systems).values())) == len(palette.systems)


def test_a_system_without_a_place_in_the_list_comes_after_it(tmp_path: Path) -> None:
    palette = Palette("mine", ("Mine", "Other"))
    assert palette.colours(["New", "Other"]) == {"New": BASELINES[1], "Other": BASELINES[0]}
    assert OURS not in Palette("none").colours(["A", "B"]).values()
    (tmp_path / "reference").mkdir()
    path = tmp_path / "reference" / "colours.yaml"
    path.write_text("mine: [A, A]", encoding="utf-8")
    with pytest.raises(InputError, match="mine: 'A' stands twice"):
        load_palette("mine", [tmp_path])


def test_a_level_is_a_line_and_no_bar() -> None:
    given = table({"kind": "grouped", "columns": ["sp"], "level": "edgellm"})
    picture, keys = KINDS["grouped"](content(given))
    assert [key.get_label() for key in keys] == ["SP", "EDGELLM"]
    assert len(picture.axes[0].patches) == 6
    dashed = [c for c in picture.axes[0].collections if c.get_linestyle()[0][1] is not None]
    assert [c.get_segments()[0][0][0] for c in dashed] == [20, 80, 2, 4, 8]


def test_a_legend_is_read_line_by_line_and_stays_within_the_figure() -> None:
    names = [f"A long name of series {i}" for i in range(7)]
    picture = canvas(5.0, 3.0)
    frame(picture, "T", [Line2D([], [], label=name) for name in names], "below")
    (legend,) = picture.legends
    picture.draw_without_rendering()
    assert legend.get_window_extent().x1 <= picture.bbox.x1
    places = {t.get_text(): t.get_window_extent() for t in legend.get_texts()}
    by_place = sorted(names, key=lambda name: (-round(places[name].y0), places[name].x0))
    assert by_place == names


def test_titles_name_the_artifact_and_what_stands_in() -> None:
    proxy = {"weights": "proxy", "config": {"target": {"checkpoint": {"name": "smollm2_135m_instruct"}}}}
    given = row_of({"ours": 1.0}, {"columns": ["x"]}, {}, labels={"target": "T5"}, **proxy)
    assert figure_title(given, "Energy") == "EdgeLLM Fig. 1: Energy\nSmolLM2-135M computes in place of T5"
    assert given.caption == "EdgeLLM Fig. 1: T (SmolLM2-135M computes in place of T5)"
    costs = row_of({"ours": 1.0}, {"columns": ["x"]}, {}, weights="none")
    assert figure_title(costs, "") == "EdgeLLM Fig. 1: T\ncosts only, no weights computed"
    assert row_of({"ours": 1.0}, {"columns": ["x"]}, {}).stand_ins == ""


def test_the_line_below_says_which_values_have_a_mark() -> None:
    records = [
        record(method, {"load": 1.0}, labels={"device": device}, weights=weights, dequantized=device == "b")
        for method, weights in (("sp", "none"), ("edgellm", "real"))
        for device in "ab"
    ]
    column = {"heading": "S", "value": "load", "unit": "s"}
    columns = [{**column, "key": m, "heading": m, "where": {"method": m}} for m in METHODS]
    section = {"title": "T", "rows": {"by": ["device"]}, "columns": columns, "figure": {"columns": METHODS}}
    given = build(table_spec("table", section), records, {})
    said = origin(given, content(given)).removeprefix(given.how_made.rstrip(".") + "; ").split("; ")
    assert said[0] == "sp: costs only, no weights computed"
    assert said[1] == "b: computed from a checkpoint that came quantized"
