"""Pictures: each kind shows the figures where they belong, published ones too, the same every time."""

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from records import record
from repro.core.errors import InputError
from repro.reports.figures.figure import KINDS, draw
from repro.reports.figures.lines import Series, series
from repro.reports.figures.paint import OURS, PAPER, colour
from repro.reports.figures.shown import Shown, shown
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.spec import TableSpec
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
    return build(TableSpec.parse("table", {**section, **changes}), records, {"p.range": PUBLISHED})


def content(given: Table) -> Shown:
    assert given.figure is not None
    return shown(given, given.figure)


LINES = {"kind": "lines", "columns": ["sp", "edgellm"], "x": "length", "panel": "device"}
PARTS = [{"key": k, "heading": k, "value": k, "unit": "s"} for k in ("load", "compute")]
STACKED = {
    "columns": PARTS,
    "where": {"method": "sp"},
    "figure": {"kind": "stacked", "columns": ["load", "compute"], "heading": "Seconds"},
}
KIND = {
    "bars": table({"columns": ["sp"]}),
    "grouped": table({"kind": "grouped", "columns": ["sp", "edgellm"]}),
    "stacked": table(**STACKED),
    "lines": table(LINES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_table_gives_the_same_bytes_and_other_figures_give_others(kind: str) -> None:
    given = KIND[kind]
    assert given.figure is not None
    first = draw(given)
    assert first.startswith(b"\x89PNG")
    assert draw(given) == first
    fewer = replace(given, rows=given.rows[:-1])
    assert draw(fewer) != first
    assert draw(replace(given, figure=replace(given.figure, title="Other"))) != first


def bars(kind: str) -> list[tuple[float, float, str]]:
    """Left edge, width and colour of every bar, from the top."""
    picture, _ = KINDS[kind](content(KIND[kind]))
    found = [patch for patch in picture.axes[0].patches if isinstance(patch, Rectangle)]
    found.sort(key=lambda bar: (round(bar.get_y() + bar.get_height() / 2, 6), bar.get_x()))
    return [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in found]


def test_a_group_has_a_bar_a_column_and_none_where_there_is_no_figure() -> None:
    sp, edgellm = colour(0), colour(1)
    assert [width for _, width, shade in bars("grouped") if shade == sp] == [10, 20, 40, 1, 2, 4]
    assert [width for _, width, shade in bars("grouped") if shade == edgellm] == [20, 80, 2, 4, 8]


def test_groups_on_a_logarithmic_axis_begin_below_the_least_figure() -> None:
    given = table({"kind": "grouped", "columns": ["sp", "edgellm"], "log": True})
    (panel,) = KINDS["grouped"](content(given))[0].axes
    assert (panel.get_xscale(), panel.get_xlim()) == ("log", (0.5, 240.0))
    assert draw(given) != draw(KIND["grouped"])


def test_a_stack_s_parts_begin_where_the_ones_before_end() -> None:
    assert bars("stacked")[:4] == [(0, 10, OURS), (10, 0.5, colour(1)), (0, 20, OURS), (20, 0.5, colour(1))]


def test_a_line_is_a_column_in_the_panel_of_its_label_by_rising_x() -> None:
    found = series(content(table({**LINES, "names": {"phone": "A phone"}})))
    places = {each: [(x, entry.ours) for x, entry in points] for each, points in found.items()}
    assert list(places) == [Series(p, n) for p in ("A phone", "board") for n in ("SP", "EDGELLM")]
    assert places[Series("A phone", "SP")] == [(64, 1), (128, 2), (256, 4)]
    assert places[Series("board", "EDGELLM")] == [(64, 20), (128, None), (256, 80)]


def test_labels_that_are_no_axis_are_lines() -> None:
    found = series(content(table({**LINES, "columns": ["sp"], "panel": "", "names": {"phone": "A phone"}})))
    assert list(found) == [Series("", "A phone"), Series("", "board")]


def test_published_values_stand_at_their_x() -> None:
    picture, keys = KINDS["lines"](content(KIND["lines"]))
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["board", "phone"]
    diamonds = [line for axes in picture.axes for line in axes.lines if line.get_marker() == "D"]
    drawn = [list(line.get_xydata()) for line in diamonds if len(line.get_xdata())]
    assert [[list(point) for point in each] for each in drawn] == [[[256, 3], [256, 5]]]
    assert {to_hex(line.get_color()) for line in diamonds} == {PAPER}
    assert [key.get_label() for key in keys] == ["SP", "EDGELLM"]


@pytest.mark.parametrize(
    ("figure", "sentence"),
    [
        ({**LINES, "x": "lenght"}, "no label 'lenght'. Did you mean length"),
        ({**LINES, "panel": "method"}, "no label 'method'"),
        ({"columns": ["sp"], "kind": "stacked", "log": True}, "has no logarithmic stacked"),
        ({**LINES, "kind": "pie"}, "kind is 'pie'; choices: 'bars', 'grouped', 'stacked', 'lines'"),
    ],
)
def test_bad_input(figure: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        table(figure)


def test_one_axis_has_one_unit() -> None:
    columns = [PARTS[0], {**PARTS[1], "unit": "J"}]
    with pytest.raises(
        InputError, match="has 'J', 's' on one axis; choose columns of one unit, or kind: bars"
    ):
        table(**{**STACKED, "columns": columns})


def test_an_x_that_is_no_number_is_named() -> None:
    with pytest.raises(InputError, match="row 'board / 64' has no number as its label 'device'"):
        draw(table({**LINES, "x": "device", "panel": "length"}))
