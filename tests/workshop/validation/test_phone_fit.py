"""The fit of classes of engines, and the files that it makes."""

from __future__ import annotations

import csv
import fnmatch
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

import pytest

from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.device.device_file import facts, machine
from repro.device.engines.engine_file import chip_file, with_engine
from workshop.validation.phones.chips import sheets
from workshop.validation.phones.class_fit import ClassFit, class_problem, fit_classes
from workshop.validation.phones.comparison import Comparison
from workshop.validation.phones.emulated_rows import emulated_values
from workshop.validation.phones.engine_files import _different, check_engines
from workshop.validation.phones.page import framed, markdown, write_page
from workshop.validation.phones.quantities import DECODE, Quantity, quantities
from workshop.validation.phones.rows import FIT, PREDICT, committed_roles, phone_rows
from workshop.validation.phones.trivial import BYTES, FLOPS, RULES, nearest, trivial

ROWS = [row for row in phone_rows() if row.id in committed_roles()]
ROLES = committed_roles()
OTHER_ANDROID = ("Dimensity", "Google Tensor", "Helio")
IPHONES = ("A17 Pro", "A18 Pro", "A19 Pro")
COMMITTED = project_root() / "results" / "validation" / "phones"


@pytest.fixture(scope="module")
def fit() -> ClassFit:
    return fit_classes(ROWS, ROLES)


def one_of_each(wanted: Iterator[Quantity]) -> list[Quantity]:
    """The first quantity of each class and kind."""
    found: dict[tuple[str, str], Quantity] = {}
    for quantity in wanted:
        found.setdefault((quantity.row.engine, quantity.kind), quantity)
    return list(found.values())


def test_the_fit_s_closed_form_is_the_emulator_s_cost(fit: ClassFit) -> None:
    """Up to the four digits to which an engine's numbers are rounded."""
    wanted = one_of_each(quantities(ROWS))
    assert len(wanted) >= 30
    closed, emulated = fit.predicted(wanted), emulated_values(wanted, fit.solution.values)
    for one in wanted:
        assert emulated[one.id] == pytest.approx(closed[one.id], rel=5e-3), one.id


def test_held_out_rows_are_within_the_aims(fit: ClassFit) -> None:
    """Issue 20 asks for a median of at most 15% for decoding and 25% for prompts."""
    held = [q for q in quantities(ROWS) if ROLES[q.row.id] == PREDICT]
    wrong = {
        q.id: abs(value / q.measured - 1) for q, value in zip(held, fit.predicted(held).values(), strict=True)
    }
    for kinds, aim in (((DECODE,), 0.15), (("prefill", "first_token"), 0.25)):
        own = sorted(wrong[q.id] for q in held if q.kind in kinds)
        assert len(own) >= 50
        assert own[len(own) // 2] < aim


def test_the_fit_sees_only_fitted_rows() -> None:
    seen = {observation.id.rpartition(":")[0] for observation in class_problem(ROWS, ROLES).observations}
    assert seen == {row.id for row in ROWS if ROLES[row.id] == FIT}


def test_the_trivial_rules_scale_the_nearest_fitted_row() -> None:
    fitted = [q for q in quantities(ROWS) if ROLES[q.row.id] == FIT]
    wanted = next(q for q in quantities(ROWS) if ROLES[q.row.id] == PREDICT and q.kind == DECODE)
    near = nearest(wanted, fitted, BYTES)
    assert near is not None
    assert near.row.group == wanted.row.group
    other = [q for q in fitted if q.row.soc != wanted.row.soc]
    assert (far := nearest(wanted, other, FLOPS)) is not None
    assert far.row.soc != wanted.row.soc
    assert trivial([near], [near], BYTES) == {}, "a row does not predict itself"


def test_the_engine_and_device_files_are_what_the_fit_gives() -> None:
    assert check_engines() == []


def test_a_file_that_differs_is_noticed() -> None:
    assert list(_different({"a": 1.0, "b": [1, 2]}, {"a": 1.01, "b": [1, 2]}, "x")) == []
    assert list(_different({"a": 1.0}, {"a": 1.1}, "x")) == ["x.a is 1.1; the fit gives 1"]
    assert list(_different({"a": "y"}, {"a": "z"}, "x")) == ["x.a is 'z'; it would be 'y'"]
    assert list(_different({"a": 1.0}, {"b": 1.0}, "x")) == ["x has b; it would have a"]


def test_every_class_composes_with_every_chip_that_has_its_processor() -> None:
    ids = [row.id for row in phone_rows()]
    engines = sorted({row.engine for row in ROWS})
    pairs = 0
    for engine in engines:
        content = read_mapping(conf_dir() / "engine" / f"{engine}.yaml")
        for soc in sheets():
            device = read_mapping(conf_dir() / "device" / f"{chip_file(soc)}.yaml")
            if content["main"] in device["processors"]:
                described = with_engine(device, content)
                assert machine(described).main == content["main"]
                for fact in facts(described):
                    assert all(fnmatch.filter(ids, cell) for cell in fact.cells), fact.path
                pairs += 1
    assert len(engines) >= 15
    assert pairs > 200


@pytest.fixture(scope="module")
def comparison(fit: ClassFit) -> Comparison:
    some = tuple(one_of_each(q for q in quantities(ROWS)))
    closed = fit.predicted(some)
    rules = {
        rule: trivial(some, list(quantities(r for r in ROWS if ROLES[r.id] == FIT)), rule) for rule in RULES
    }
    band = {one: (0.9 * value, 1.1 * value) for one, value in closed.items()}
    assumed = dict.fromkeys(closed, 1.0)
    return Comparison(some, ROLES, closed, closed, closed, closed, rules, rules, band, assumed)


def test_the_page_has_every_row_and_begins_with_chips_that_nobody_measured(
    comparison: Comparison, tmp_path: Path
) -> None:
    frame = framed(comparison)
    write_page(tmp_path, frame)
    found = list(csv.DictReader((tmp_path / "rows.csv").open(encoding="utf-8")))
    assert [row["id"] for row in found] == [q.row.id for q in comparison.quantities]
    table = list(csv.DictReader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert table[0]["rows"] == "a chip that nobody measured, Android phones"
    android = [
        q
        for q in comparison.quantities
        if q.kind == DECODE and q.row.soc.startswith(("Snapdragon 7", "Snapdragon 8", *OTHER_ANDROID))
    ]
    assert table[0]["n"] == str(len(android))
    assert "committed before the first prediction" in markdown(frame)
    assert (
        max(
            len(line)
            for line in (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
            if line[:1] != "|"
        )
        <= 120
    )


def test_the_committed_table_s_medians_are_those_of_its_rows_by_kind_of_machine() -> None:
    """Phones, iPhones and boards apart, with two rows and none of the chip, by plain arithmetic."""
    table = list(csv.DictReader((COMMITTED / "table.csv").open(encoding="utf-8")))
    rows = [
        row
        for row in csv.DictReader((COMMITTED / "rows.csv").open(encoding="utf-8"))
        if row["of"] == "decode"
    ]
    android = ("Snapdragon 7", "Snapdragon 8", *OTHER_ANDROID)
    kinds = {
        "Android phones": [row for row in rows if row["soc"].startswith(android)],
        "iPhones": [row for row in rows if row["soc"] in IPHONES],
        "boards and laptops": [
            row for row in rows if not row["soc"].startswith(android) and row["soc"] not in IPHONES
        ],
    }
    views = {
        "a chip that nobody measured": ("without_chip", ("fit", "predict", "defaults")),
        "2 rows of the chip": ("two_rows", ("predict",)),
        "held-out rows of fitted groups": ("predicted", ("predict",)),
    }
    order = [line["rows"] for line in table if line["of"] == "decode"]
    assert order[:9] == [f"{view}, {kind}" for view in views for kind in kinds]
    for (view, (column, roles)), kind in product(views.items(), kinds):
        line = next(line for line in table if (line["rows"], line["of"]) == (f"{view}, {kind}", "decode"))
        some = [row for row in kinds[kind] if row["role"] in roles]
        wrong = [abs(float(row[column]) / float(row["measured"]) - 1) for row in some]
        assert int(line["n"]) == len(wrong) >= 20
        assert float(line["median error, %"]) == pytest.approx(100 * median(wrong), abs=0.2)
