"""Pictures: each kind shows the figures where they belong, published ones too, the same every time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from invented_tables import built, cell, column
from records import record
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.reports.figures.figure import CHARTS, draw
from repro.reports.figures.paint import BASELINE_COLOURS, OUR_COLOUR, colour
from repro.reports.figures.palette import SYSTEM_LABELS, Palette, load_palette
from repro.reports.figures.shown import Content, figure_content, figure_title
from repro.reports.tables.table import Table

PUBLISHED = {"edgellm.fig17.range": cell("edgellm.fig17.range", 3.0, 5.0, "s")}


METHODS = ("sp", "edgellm")


PALETTE = Palette("edgellm", ("EdgeLLM", "Std", "SP"))


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
        column("load", key=method, heading=method.upper(), unit="s", where={"method": method})
        for method in METHODS
    ]
    columns[1]["reference"] = {"phone / 256": "edgellm.fig17.range"}
    section = {"columns": columns, "rows": {"by": ["device", "length"]}, "figure": figure, **changes}
    return built(records, cells=PUBLISHED, **section)


def content(given: Table) -> Content:
    assert given.figure is not None
    return figure_content(given, given.figure, PALETTE)


LINES = {"kind": "lines", "columns": METHODS, "x": "length", "panel": "device"}


PARTS = [column(part, unit="s") for part in ("load", "compute")]


STACKED = {
    "columns": PARTS,
    "where": {"method": "sp"},
    "figure": {"kind": "stacked", "columns": ["load", "compute"], "heading": "Seconds"},
}


GROUPED = {"kind": "grouped", "columns": METHODS}


KIND = {
    "bars": table({"columns": ["sp"]}),
    "grouped": table(GROUPED),
    "stacked": table(**STACKED),
    "dots": table({"kind": "dots", "columns": METHODS, "log": True}),
    "lines": table(LINES),
    "curves": table({"kind": "curves", "columns": ["edgellm"], "x": "sp", "panel": "device"}),
}


SP, EDGELLM = BASELINE_COLOURS[1], OUR_COLOUR


"""Their colours: the second baseline of the list, and the paper's own."""


@pytest.mark.parametrize("kind", CHARTS)
def test_the_same_table_gives_the_same_bytes_and_other_figures_give_others(kind: str) -> None:
    given = KIND[kind]
    first = draw(given)
    assert first.startswith(b"\x89PNG")
    assert len(first) < 60_000
    assert draw(given) == first
    assert draw(replace(given, rows=given.rows[:-1])) != first
    assert b"CreationDate" not in draw(given, "pdf")


def bars(kind: str) -> list[tuple[float, float, str]]:
    """Left edge, width and colour of every bar, from the top."""
    picture, _ = CHARTS[kind](content(KIND[kind]))
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
    picture, keys = CHARTS["grouped"](content(table({**GROUPED, "log": True})))
    (panel,) = picture.axes
    assert panel.get_xscale() == "log"
    assert not panel.patches, "a bar would begin anywhere"
    places = sorted(x for points in marks(panel, "o") for x, _ in points)
    assert places == sorted([*SHOWN[SP], *SHOWN[EDGELLM]])
    assert {key.get_marker() for key in keys if isinstance(key, Line2D)} == {"o", "D"}, "as they are drawn"


@pytest.mark.parametrize(
    ("values", "scale"), [((1.0, 20.0), "linear"), ((0.3, 629.0), "log"), ((0.0, 629.0), "linear")]
)
def test_a_bar_that_would_be_invisible_beside_others_is_a_dot(values: tuple[float, ...], scale: str) -> None:
    records = [record(m, {"x": value}) for m, value in zip(METHODS, values, strict=True)]
    picture, _ = CHARTS["bars"](content(built(records, [column("x")], figure={"columns": ["x"]})))
    (panel,) = picture.axes
    assert (panel.get_xscale(), bool(panel.patches)) == (scale, scale == "linear")


def test_a_stack_s_parts_begin_where_the_ones_before_end() -> None:
    one, two = colour(0), colour(1)
    assert bars("stacked")[:4] == [(0, 10, one), (10, 0.5, two), (0, 20, one), (20, 0.5, two)]


def test_published_values_stand_at_their_x_in_the_colour_of_their_line() -> None:
    picture, keys = CHARTS["lines"](content(KIND["lines"]))
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["board", "phone"]
    assert [marks(axes, "D") for axes in picture.axes] == [[], [[(256, 3), (256, 5)]]]
    (diamonds,) = (line for line in picture.axes[1].lines if line.get_marker() == "D")
    assert to_hex(diamonds.get_color()) == EDGELLM
    assert [key.get_label() for key in keys] == ["SP", "EDGELLM", "published"]
    assert {line.get_markerfacecolor() for line in (diamonds, keys[-1])} == {"none"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("figure", "changes", "sentence"),
    [
        ({**LINES, "x": "lenght"}, {}, "no label 'lenght'. Did you mean length"),
        ({"columns": ["sp"], "kind": "stacked", "log": True}, {}, "has no logarithmic stacked"),
        ({"columns": ["sp"], "uprights": {"p": ["1"]}}, {}, "bars have no `uprights`"),
        ({"kind": "curves", "columns": ["sp"], "x": "b"}, {}, "column 'b'.*edgellm"),
        ({**LINES, "kind": "pie"}, {}, "kind is 'pie'; choices: bars, grouped, stacked, dots, lines"),
        (STACKED["figure"], {"columns": [PARTS[0], {**PARTS[1], "unit": "J"}]}, "'J', 's' on one axis"),
        ({**LINES, "x": "device", "panel": "length"}, {}, "'board / 64' has no number as its label 'device'"),
    ],
)
def test_a_wrong_picture_is_said(figure: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draw(table(figure, **changes))


def row_of(
    values: dict[str, Any], figure: dict[str, Any], changes: dict[str, Any], **provenance: Any
) -> Table:
    """One method's value, what was published and its uncertainty under one column."""
    low, high = values.get("published", (None, None))
    cells = {"edgellm.fig1.p": cell("edgellm.fig1.p", low, high, changes.get("unit", ""))}
    columns = [column("x", reference=dict.fromkeys(["edgellm"] * ("published" in values), "edgellm.fig1.p"))]
    uncertainty = {"x": values["spread"]} if "spread" in values else {}
    one = record("edgellm", {"x": values["ours"]}, uncertainty=uncertainty, **provenance)
    columns[0] |= {"better": "higher", **changes}
    return built([one], columns, cells, title="EdgeLLM Fig. 1: T", figure=figure)


@pytest.mark.parametrize("kind", ["bars", "grouped"])
@pytest.mark.parametrize(
    ("values", "changes", "words", "axis", "interval"),
    [
        ({"ours": 20.0, "published": (22.0, 90.0)}, {"digits": 1}, "20.0", (0, 90), []),
        ({"ours": 20.0, "spread": (15.0, 30.0)}, {"digits": 0}, "20", (0, 30), [15.0, 30.0]),
        ({"ours": 20.0, "spread": 4.0}, {"digits": 0}, "20", (0, 24), [16.0, 24.0]),
        ({"ours": -5.0}, {"digits": 1}, "-5.0", (-5, 0), []),
        ({"ours": 0.0}, {"digits": 3}, "0", (0, 1), []),
        ({"ours": -0.0001}, {"digits": 3}, "0.000", (-0.0001, 0), []),
    ],
)
def test_a_bar_shows_our_value_its_interval_and_what_was_published(
    kind: str,
    values: dict[str, Any],
    changes: dict[str, Any],
    words: str,
    axis: tuple[float, float],
    interval: list[float],
) -> None:
    picture, _ = CHARTS[kind](content(row_of(values, {"kind": kind, "columns": ["x"]}, changes)))
    panel = picture.axes[0]
    assert [text.get_text() for text in panel.texts] == [words]
    assert panel.get_xlim() == axis
    assert [bar.get_width() for bar in panel.patches if isinstance(bar, Rectangle)] == [values["ours"]]
    assert [x for points in marks(panel, "D") for x, _ in points] == [*values.get("published", ())]
    segments = [c.get_segments() for c in panel.collections]  # type: ignore[attr-defined]
    assert [x for lines in segments if len(lines) == 1 for x, _ in lines[0]] == interval


def test_every_system_of_a_paper_has_a_colour_of_its_own(tmp_path: Path) -> None:
    """A name that colours.yaml lacks would take another colour in each figure."""
    names = read_mapping(conf_dir() / "reference" / "names.yaml")
    papers = [paper for paper in names if paper != "any"]
    assert len(papers) >= 6
    for paper in papers:
        palette = load_palette(str(paper))
        labels = [{label: str(value)} for label in SYSTEM_LABELS for value in names[paper].get(label, {})]
        there = {system for label in labels for system in palette.systems_of(label)}
        assert there <= set(palette.systems), paper
        assert palette.colours([palette.own_system]) == {palette.own_system: OUR_COLOUR}
        assert len(set(palette.colours(palette.systems).values())) == len(palette.systems)
    assert OUR_COLOUR not in Palette("none").colours(["A", "B"]).values()
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "colours.yaml").write_text("mine: [A, A]", encoding="utf-8")
    with pytest.raises(InputError, match="mine: 'A' stands twice"):
        load_palette("mine", [tmp_path])


def test_a_figure_says_what_stands_in() -> None:
    target = {"checkpoint": {"name": "smollm2_135m_instruct"}}
    proxy = {"labels": {"target": "T5"}, "weights": "proxy", "config": {"target": target}}
    given = row_of({"ours": 1.0}, {"columns": ["x"]}, {}, **proxy)
    assert figure_title(given, "Energy") == "EdgeLLM Fig. 1: Energy\nSmolLM2-135M computes in place of T5"
    costs = row_of({"ours": 1.0}, {"columns": ["x"]}, {}, weights="none")
    assert figure_title(costs, "") == "EdgeLLM Fig. 1: T\ncosts only, no weights computed"
