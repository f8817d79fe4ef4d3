"""The closed forms of mllm-NPU's engines: their cells, and that they recover what made their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from repro.core.paths import project_root
from repro.reports.reference.reference import find, load_cells
from workshop.studies.fit_mllm import __main__ as command
from workshop.studies.fit_mllm import closed_forms, yardsticks
from workshop.studies.fit_mllm.closed_forms import (
    BASELINES,
    BOUND,
    BOUND_AT,
    COLUMNS,
    DATASETS,
    FITTED,
    MICRO,
    OURS,
    PRODUCTS,
    Fits,
    cell,
    micro,
    prefill,
    published,
)

FITS = Fits()


def test_the_fitted_cells_are_the_frozen_ones() -> None:
    """Rows of two models for baselines and the anchored NPU, no row at all for the zero-shot one."""
    cells = load_cells()
    assert {name: len(ids) for name, ids in FITTED.items()} == {
        "mlc": 10,
        "lcpp": 10,
        "mnn": 10,
        "pi": 5,
        "tflite": 4,
        "zero_shot": 7,
        "anchored": 8,
    }
    assert all(find(cells, one) for ids in FITTED.values() for one in ids)
    assert [one for one in FITTED["mnn"] if one.startswith("mllm_npu.")] == [
        "mllm_npu.table4.applauncher.llama_2_7b.mnn"  # its printed parts are not those of its total
    ]
    assert not [one for one in FITTED["zero_shot"] if ".table4." in one or ".table5." in one]
    for name in BASELINES:
        assert not [one for one in FITTED[name] if ".ours" in one]
    own = r"mllm_npu\.table4\.\w+\.(qwen1_5_1_8b|llama_2_7b)\.ours"
    assert all(re.fullmatch(own, one) for one in FITTED["anchored"])


def test_what_is_fitted_is_never_predicted() -> None:
    for one in yardsticks.engines(FITS):
        used = FITTED.get(one.column, ()) if one.column != OURS else FITTED["anchored"] if one.again else ()
        assert not {cell(one.column, m, d) for m in one.predicted for d in DATASETS} & {*used}


def test_the_zero_shot_npu_meets_its_products_and_just_meets_the_bound() -> None:
    start, bandwidth = micro()
    for (_, inputs, outputs), name in zip(PRODUCTS, MICRO, strict=True):
        assert start + inputs * outputs / bandwidth == pytest.approx(published(name) / 1e3, rel=0.15)
    numbers: Mapping[str, float] = FITS.zero_shot().numbers
    model, prompt = BOUND_AT
    assert prompt / prefill(model, prompt, **numbers) == pytest.approx(published(BOUND), rel=1e-6)


def test_the_command_prints_a_line_for_every_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*BASELINES, "ours, zero-shot", "ours, anchored"))
    assert "of 20 rows" in out


def test_the_page_has_the_readings_and_the_models_left_out() -> None:
    """Digit by digit; the published reading is the first of nine, and each baseline's cells are all there."""
    page = (project_root() / "docs" / "mllm_npu.md").read_text(encoding="utf-8")
    readings, left_out = yardsticks.readings_rows(), yardsticks.left_out_rows(FITS)
    assert [len(row) for row in readings] == [4] * 4
    assert [int(row[1]) for row in left_out] == [20, 20, 12, 8, 8, 68]
    for row in (*readings, *left_out):
        assert f"| {' | '.join(row)} |" in page


def test_a_model_left_out_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the fit of a prefill nor by that of an answer, nor by the mean of the others."""
    hidden = "phi_2"
    others = [model for model in COLUMNS["mnn"].models if model != hidden]
    known, seen = published, set[str]()

    def watched(name: str) -> float:
        seen.add(name)
        return known(name)

    closed_forms.answer.cache_clear()
    monkeypatch.setattr(closed_forms, "published", watched)
    monkeypatch.setattr(yardsticks, "published", watched)
    FITS.baseline("mnn", others).predict(hidden, "clock")
    yardsticks.mean_rate("mnn", others)(hidden, "clock")
    closed_forms.answer.cache_clear()
    assert seen
    assert not [name for name in seen if hidden in name]
