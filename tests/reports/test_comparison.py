"""Comparisons: units, distances, statements, verdicts, what cannot miss, and the counts of many."""

from dataclasses import replace

import pytest

from invented_tables import cell
from repro.core.errors import InputError
from repro.reports.comparison.certain import COUNT, DERIVED, LOSSLESS, REPEATED, WIDTH_ONE, find_certain
from repro.reports.comparison.comparison import Comparison, Ends, Figure, Published, in_unit
from repro.reports.comparison.frame import GROUPS, fitted_misses, median, sentences, to_frame
from repro.reports.spec.units import FACTORS, factor


def compared(
    low: float | None,
    high: float | None,
    *ours: float,
    unit: str = "x",
    n: int | None = None,
    interval: Ends | None = None,
    band: Ends | None = None,
    name: str = "edgellm.fig1.a",
    **texts: str,
) -> Comparison:
    """A comparison of these ends with one figure or two."""
    return Comparison(
        cell=cell(name, low, high, unit, **texts),
        published=Published(name, low, high),
        unit=unit,
        ours=tuple(Figure(value, interval, band) for value in ours),
        n=n,
    )


POINTS = {"unit": "%", "metric": "accuracy"}


@pytest.mark.parametrize(
    ("one", "error", "distance", "point"),
    [
        (compared(2.0, 2.0, 1.0), -0.5, "50% below", "fails"),
        (compared(2.0, 2.0, 2.18), 0.09, "9% above", "holds"),
        (compared(2.0, 2.0, 2.24), 0.12, "12% above", "fails"),
        (compared(2.0, 2.0, 1.78), -0.11, "11% below", "fails"),
        (compared(2.0, 2.0, 2.0), 0.0, "equal", "holds"),
        (compared(2.0, 4.0, 3.0), 0.0, "inside", "holds"),
        (compared(2.0, 4.0, 5.0), 0.25, "25% above", "fails"),
        (compared(2.0, 4.0, 2.1, 4.2), 0.05, "5% above", "holds"),
        (compared(2.0, 4.0, 2.5, 3.0), 0.0, "inside", "fails"),
        (compared(None, 4.0, 3.0), None, "bound kept", "holds"),
        (compared(None, 4.0, 5.0), None, "bound broken, 25% beyond", "fails"),
        (compared(None, 4.0, 2.0, note="up to"), None, "reaches 50% of it", "fails"),
        (compared(None, 4.0, 4.2, note="up to"), None, "reaches 105% of it", "holds"),
        (compared(None, 4.0, 8.0, note="up to"), None, "reaches 200% of it", "fails"),
        (compared(1.0, None, 0.5), None, "bound broken, 50% beyond", "fails"),
        (compared(80.0, 80.0, 82.5, **POINTS), 2.5, "2.5 points above", "fails"),
        (compared(3.0, 3.0, 4.5, **POINTS), 1.5, "1.5 points above", "holds"),
        (compared(-1.0, 1.0, 0.0), 0.0, "inside", "holds"),
        (compared(0.0, 0.0, 1.0), None, "printed as 0", "fails"),
        (compared(2.0, 2.0), None, "no figure", None),
    ],
)
def test_distance_and_point_verdict(
    one: Comparison, error: float | None, distance: str, point: str | None
) -> None:
    assert one.error == (None if error is None else pytest.approx(error))
    assert (one.distance, one.point, one.verdict) == (distance, point, point)


@pytest.mark.parametrize(
    ("interval", "band", "n", "verdict", "needs"),
    [
        ((1.9, 2.1), None, None, "holds", ""),
        ((1.9, 2.3), None, 30, "undetermined", "more than the 30 prompts, rows or requests"),
        ((1.9, 2.1), (1.0, 3.0), None, "undetermined", "assumed numbers of the device"),
        (None, (1.9, 2.1), None, "holds", "assumed numbers of the device"),
        (None, None, 3, "undetermined", "5 or more prompts, rows or requests (now 3)"),
        (None, None, 30, "undetermined", "its parts by prompt, which are not kept"),
    ],
)
def test_a_verdict_is_over_interval_and_band(
    interval: Ends | None, band: Ends | None, n: int | None, verdict: str, needs: str
) -> None:
    ours = compared(2.0, 2.0, 2.0, interval=interval, band=band, n=n)
    assert (ours.verdict, ours.point, ours.decided_by) == (verdict, "holds", needs)
    away = compared(9.0, 9.0, 2.0, interval=interval, band=band)
    assert (away.verdict, away.point) == ("fails", "fails")


def test_a_miss_is_over_a_quarter_or_ten_points_off() -> None:
    ours = (compared(2.0, 2.0, 2.6), compared(2.0, 2.0, 2.5))
    points = (compared(80.0, 80.0, 69.0, **POINTS), compared(3.0, 3.0, 12.0, **POINTS))
    assert [one.is_miss for one in (*ours, *points)] == [True, False, True, False]


def of_cell(key: str, low: float, value: float, name: str) -> Comparison:
    return replace(compared(low, low, value, unit="s", metric="e2e_latency", name=name), cells=(key,))


def test_what_cannot_miss_by_construction() -> None:
    whole, once = {"unit": "%", "metric": "rouge_l"}, compared(2.0, 2.0, 3.0)
    given = {
        compared(100.0, 100.0, 100.0, **whole): LOSSLESS,
        compared(100.0, 100.0, 99.0, **whole): "",
        compared(90.0, 90.0, 100.0, **whole): "",
        compared(1.0, 1.0, 1.0, metric="acceptance_length", condition="width=1"): WIDTH_ONE,
        compared(1.2, 1.2, 1.0, metric="acceptance_length", condition="width=2"): "",
        compared(144.0, 144.0, 144.0, unit="subgraphs"): COUNT,
        once: "",
        replace(once, row="again"): REPEATED,
        compared(2.0, 2.0, 3.5): "",
    }
    assert [one.certain for one in find_certain([*given])] == [*given.values()]


def test_a_ratio_and_a_mean_of_compared_figures_are_derived() -> None:
    slow, fast = of_cell("a", 8.0, 6.0, "edgellm.fig1.a"), of_cell("b", 2.0, 1.5, "edgellm.fig1.b")
    both = {"cells": ("a",), "baseline": ("b",)}
    ratio = replace(compared(4.5, 4.5, 4.0, name="edgellm.fig1.c"), **both)
    reduction = replace(compared(70.0, 70.0, 75.0, unit="%", name="edgellm.fig1.d"), **both)
    mean = replace(compared(4.0, 4.0, 3.0, name="edgellm.fig1.e"), cells=("a", "b"))
    others = [replace(one, ours=(Figure(3.9),)) for one in (ratio, mean)]
    found = find_certain([slow, fast, ratio, reduction, mean, *others])
    assert [one.certain for one in found] == ["", "", DERIVED, DERIVED, DERIVED, "", ""]
    assert find_certain([ratio])[0].certain == "", "what it would follow from is not compared"


def test_each_comparison_is_counted_in_one_place() -> None:
    """What the paper contradicts counts in the median, but apart."""
    slip = replace(compared(2.0, 2.0, 2.5), cell=replace(compared(2.0, 2.0).cell, contradicted="A slip"))
    given = [
        compared(2.0, 2.0, 3.0),
        compared(2.0, 2.0, 2.2),
        compared(2.0, 2.0, 2.1),
        compared(80.0, 80.0, 70.0, **POINTS),
        compared(2.0, 4.0, 3.0),
        compared(None, 4.0, 3.0),
        compared(None, 4.0, 5.0),
        replace(compared(2.0, 2.0, 4.0), marks=("fitted",)),
        slip,
        replace(slip, certain=COUNT),
        compared(2.0, 2.0),
    ]
    found = to_frame(given)
    counts = found["group"].value_counts()
    assert [counts.get(name, 0) for name in GROUPS] == [3, 1, 1, 1, 1, 1, 1, 1, 1]
    assert median(found[found["can_miss"] & (found["in_points"] == 0)]) == pytest.approx(0.175)
    assert (found["missed"] & found["can_miss"]).sum() == len(fitted_misses(found)) == 1
    assert "over 4 figures that can miss: median error 17.5%, worst 50.0%" in sentences(found)[0]


SIZES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "hour": 3600.0, "GPU": 3600.0, "%": 0.01}
"""What one of a unit's first word is, in seconds or as a share; others count themselves."""


def size(unit: str) -> float:
    return SIZES.get(unit.split("/")[0].split(" ")[0], 1.0)


@pytest.mark.parametrize("units", FACTORS, ids=" to ".join)
def test_a_factor_is_that_of_the_units_prefixes(units: tuple[str, str]) -> None:
    given, wanted = units
    assert factor(given, wanted) == pytest.approx(size(given) / size(wanted))


def test_a_published_value_is_written_in_the_column_s_unit() -> None:
    published = cell("t.a", 817, 1229, "ms")
    assert in_unit(published, "s", "x").ends == pytest.approx([0.817, 1.229])
    assert in_unit(replace(published, unit="s"), "ms", "x").ends == pytest.approx([817e3, 1229e3])
    assert in_unit(replace(published, value_low=None, unit="%"), "x", "x").ends == pytest.approx([12.29])
    with pytest.raises(InputError, match=r"cell 't\.a' is in 'ms' and x in 'J'"):
        in_unit(published, "J", "x")
