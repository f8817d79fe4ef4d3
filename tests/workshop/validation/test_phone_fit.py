"""The fit of classes of engines, and the files and the page that it makes."""

from __future__ import annotations

import csv
import fnmatch
from dataclasses import replace
from statistics import median

import numpy as np
import pandas as pd
import pytest

from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.bands import bands as kept_bands
from repro.device.engines.engine_file import chip_file, public_engine, read_engine, with_engine
from repro.models.runtime.placement import Placement
from workshop.fitting.measures import one_pass
from workshop.validation.phones.bands import bands, holds
from workshop.validation.phones.chips import sheets, soc_device
from workshop.validation.phones.class_fit import ClassFit, fit_classes
from workshop.validation.phones.classes import LogTerm, PassSeconds
from workshop.validation.phones.comparison import GIVEN, WITHOUT, compare, divided
from workshop.validation.phones.engine_files import _different, all_rows_fit, check_engines
from workshop.validation.phones.page import BY_MACHINE, MACHINES
from workshop.validation.phones.quantities import DECODE, Quantity, quantities
from workshop.validation.phones.rows import model_cost, phone_rows
from workshop.validation.phones.trivial import BYTES, FLOPS, nearest, trivial

ROWS = [row for row in phone_rows() if not row.apart]
SEEN = [*quantities(ROWS)]
COMMITTED = project_root() / "results" / "validation" / "phones"


@pytest.fixture(scope="module")
def fit() -> ClassFit:
    return all_rows_fit()[1]


def emulated(one: Quantity) -> float:
    """A value by the emulator, from the committed engine's file over the chip's data sheet."""
    row = one.row
    device = soc_device(row.soc, row.threads)
    engine = public_engine(device, "", read_engine(row.engine))
    device = with_engine(device, engine)
    placement = Placement(on=row.processor)
    cost = model_cost(row)
    done = one_pass(EmulatedDevice(machine(device)), cost, one.rows, one.context, placement, logits="last")
    return one.printed(done.end - done.start)


def test_the_fit_s_closed_form_is_what_the_emulator_bills_with_the_committed_files(fit: ClassFit) -> None:
    """One value of each class, kind and format, with fallbacks, threads and builds among them."""
    wanted = {(one.row.engine, one.kind, one.row.format): one for one in SEEN}
    assert len(wanted) >= 60
    closed = fit.predicted([*wanted.values()])
    for one in wanted.values():
        assert emulated(one) == pytest.approx(closed[one.id], rel=2e-2), one.id


def test_the_derivatives_of_the_closed_form_are_its_slopes(fit: ClassFit) -> None:
    some = SEEN[::40]
    passes = PassSeconds(some, {one: i for i, one in enumerate(fit.values)})
    values = np.array([*fit.values.values()])
    slopes, step = passes.jacobian(values).toarray(), 1e-4
    for place in np.flatnonzero(slopes.any(axis=0))[::5]:
        moved = values + step * (np.arange(len(values)) == place)
        assert np.log(passes(moved) / passes(values)) / step == pytest.approx(slopes[:, place], abs=2e-3)


def test_a_fit_to_values_of_a_known_law_finds_it() -> None:
    """Decode rates that are 0.4 of each bus come back on a chip that the fit did not see."""
    rows = [row for row in ROWS if row.engine == "llama_cpp_cpu" and row.format == "q4_0" and row.decode]
    law = ClassFit({LogTerm("bandwidth_share", "llama_cpp_cpu", 0.3): np.log(0.4 / 0.6)})
    exact = [replace(one, measured=law.predicted([one])[one.id]) for one in quantities(rows)]
    chip = exact[0].row.soc
    blind = fit_classes([one for one in exact if one.row.soc != chip])
    own = [one for one in exact if one.row.soc == chip]
    assert blind.predicted(own) == pytest.approx({one.id: one.measured for one in own}, rel=0.03)


def test_every_prediction_is_of_a_fit_that_did_not_see_the_value_nor_more_of_its_chip_than_it_says() -> None:
    for column, wanted, given in divided(SEEN, SEEN):
        if column in (WITHOUT, *GIVEN):
            chips = {one.row.soc for one in wanted}
            assert not {one.row.id for one in wanted} & {one.row.id for one in given}
            own = {one.row.id for one in given if one.row.soc in chips}
            assert len(own) == GIVEN.get(column, 0)


def test_the_trivial_rules_scale_the_nearest_row() -> None:
    wanted = next(one for one in SEEN if one.kind == DECODE and one.row.soc == "BCM2712")
    fitted = [one for one in SEEN if one.row != wanted.row]
    near = nearest(wanted, fitted, BYTES)
    assert near is not None
    assert near.row.group == wanted.row.group
    other = [one for one in fitted if one.row.soc != wanted.row.soc]
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


def test_no_processor_reads_more_than_was_measured_and_no_start_is_nothing() -> None:
    """The 8 Gen 3's NPU was measured to read 56 of the bus's 76.8 GB/s (PowerInfer-2 sec. 2.3.1)."""
    device = soc_device("Snapdragon 8 Gen 3")
    for engine in ("qnn_npu", "llama_cpp_npu"):
        used = machine(with_engine(device, public_engine(device, "", read_engine(engine)))).processors["npu"]
        assert used.bandwidth <= 56e9
        assert min(start.at(1) for start in used.start.values()) >= 1e-6
        assert used.start_exponent <= 1


def test_every_class_composes_with_every_chip_that_has_its_processor() -> None:
    ids = [row.id for row in phone_rows()]
    engines = sorted({row.engine for row in ROWS})
    pairs = 0
    for engine in engines:
        content = read_mapping(conf_dir() / "engine" / f"{engine}.yaml")
        for soc in sheets():
            device = read_mapping(conf_dir() / "device" / f"{chip_file(soc)}.yaml")
            if content["main"] in device["processors"]:
                described = with_engine(device, public_engine(device, "", content))
                assert machine(described).main == content["main"]
                for fact in facts(described):
                    assert all(fnmatch.filter(ids, cell) for cell in fact.cells), fact.path
                pairs += 1
    assert len(engines) >= 15
    assert pairs > 500


def test_a_band_of_errors_that_are_alike_on_all_chips_holds_its_nominal_share() -> None:
    random = np.random.default_rng(0)
    errors = pd.DataFrame({"error": random.normal(0, 0.3, 2000), "soc": random.integers(0, 20, 2000)})
    errors = errors.assign(processor="cpu", phase="decode", known="class")
    line = bands(errors).iloc[0]
    assert line["factor_50"] == pytest.approx(np.exp(0.6745 * 0.3), rel=0.05)
    for share in (50, 80, 95):
        assert holds(share / 100, line[f"seen_{share}"], 2000)
    assert not holds(0.95, 0.9, 2000)


def test_the_committed_bands_and_medians_are_those_of_the_committed_rows() -> None:
    """By plain arithmetic: one line of every view, and the band of decoding from rows of other chips."""
    rows = pd.read_csv(COMMITTED / "rows.csv")
    rows = rows[rows["apart"].isna()]
    rows["machine"] = rows["soc"].map(lambda soc: sheets()[soc]["kind"])
    table = list(csv.DictReader((COMMITTED / "table.csv").open(encoding="utf-8")))
    assert table[0]["rows"] == "a chip that nobody measured, Android phones"
    for view, (chosen, column) in BY_MACHINE.items():
        own = rows.assign(apart="").query(chosen)
        own = own[(own["of"] == DECODE) & (own["machine"] == "board")].dropna(subset=[column])
        found = [
            line for line in table if line["rows"] == f"{view}, {MACHINES['board']}" and line["of"] == DECODE
        ]
        assert int(found[0]["n"]) == len(own)
        wrong = (own[column] / own["measured"] - 1).abs()
        assert float(found[0]["median error, %"]) == pytest.approx(100 * median(wrong), abs=0.2)
    known = rows[(rows["of"] == DECODE) & (rows["known"] == "class")]
    sizes = np.sort(np.abs(np.log(known[WITHOUT] / known["measured"])))
    kept = kept_bands()["all", DECODE, "class"]
    assert ("all", DECODE, "nothing") not in kept_bands(), "its shares do not hold"
    assert kept.values == len(sizes)
    assert kept.factors[1] == pytest.approx(np.exp(sizes[int(np.ceil((len(sizes) + 1) * 0.8)) - 1]), rel=2e-3)


def test_the_frame_has_every_row_and_what_was_known() -> None:
    some = [row for row in ROWS if row.engine == "xnnpack_cpu"]
    frame = compare(some)
    assert set(frame["id"]) == {row.id for row in some}
    assert set(frame["known"]) == {"class", "nothing"}
    assert frame[WITHOUT].notna().all()
