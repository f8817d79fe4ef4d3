"""Factors between units, held to what their names mean: no value is shown a thousand times too large."""

from dataclasses import replace

import pytest

from invented_tables import cell
from repro.core.errors import InputError
from repro.reports.comparison.comparison import in_unit
from repro.reports.spec.units import FACTORS, factor

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
