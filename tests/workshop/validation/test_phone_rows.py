"""The measured rows: what is read, what stands apart, and which rows a fit may see."""

from __future__ import annotations

from collections import Counter

import pytest

from repro.core.errors import InputError
from workshop.validation.phones import rows as module
from workshop.validation.phones.chips import peaks, sheets
from workshop.validation.phones.class_specification import class_specification
from workshop.validation.phones.rows import (
    DEFAULTS,
    FIT,
    PREDICT,
    committed_roles,
    divided,
    model_cost,
    phone_rows,
    rows_of,
    shapes,
)

ROWS = phone_rows()
ROLES = committed_roles()
SPLIT = [row for row in ROWS if row.id in ROLES]


def test_every_row_is_read_and_named_once() -> None:
    assert len(ROWS) == len({row.id for row in ROWS}) >= 566 + 217
    assert Counter(row.apart for row in ROWS)[""] >= 293 + 36


def test_the_committed_division_is_what_its_rule_gives() -> None:
    """Rows that were added to a file later have no role: they are in no figure of the validation."""
    files = [[row for row in rows_of(name) if row.id in ROLES] for name in class_specification().rows]
    assert [len(rows) for rows in files] == [293, 36]
    assert {**divided(files[0]), **divided(files[1])} == ROLES
    assert Counter(ROLES.values()) == {FIT: 150 + 21, PREDICT: 107 + 15, DEFAULTS: 36}


def test_no_source_and_model_is_on_both_sides_of_a_group() -> None:
    sides: dict[object, set[str]] = {}
    for row in SPLIT:
        sides.setdefault((row.group, row.source, row.shape), set()).add(ROLES[row.id])
    assert {len(side) for side in sides.values()} == {1}
    first = [row for row in rows_of("phones.csv") if row.id in ROLES]
    sizes = Counter(row.group for row in first)
    assert all((ROLES[row.id] == DEFAULTS) == (sizes[row.group] < 4) for row in first)


def test_every_row_of_the_division_has_a_chip_a_shape_and_a_precision() -> None:
    for row in SPLIT:
        cost = model_cost(row)
        assert row.soc in sheets()
        assert row.bits == cost.stored.bits > 1
        assert peaks(row.soc, row.processor, row.threads)[cost.stored.arithmetic] > 0


def test_shapes_have_the_parameters_that_models_are_named_for() -> None:
    known = {"qwen3_4b": 4.02, "llama_3_2_1b": 1.24, "phi_3_mini": 3.82, "falcon3_7b": 7.46, "gemma_2b": 2.51}
    known |= {"smollm2_1_7b": 1.71, "deepseek_r1_1_5b": 1.78, "qwen2_5_1_5b": 1.54, "phi_4_mini": 3.84}
    for name, billions in known.items():
        assert shapes()[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_time_to_the_first_token_is_no_rate() -> None:
    for row in ROWS:
        if row.first_token is not None:
            assert row.prefill is None, f"{row.id} has a rate that was derived from a time"


def test_a_number_that_is_none_is_an_error_with_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict(module.reference("phones.csv")[0])
    for wrong, said in (("fast", "no number"), ("-3", "above 0"), ("inf", "above 0")):
        with pytest.raises(InputError, match=f"{given['id']}.*{said}"):
            module._row({**given, "decode_tok_s": wrong})
    monkeypatch.setattr(module, "reference", lambda name: [{"id": "x", "role": "guess"}])
    with pytest.raises(InputError, match="'guess'"):
        committed_roles()


def test_rows_of_a_revised_text_have_its_latest_values_and_name_the_version() -> None:
    rows = [row for row in module.reference("phones.csv") if "2603.23640" in row["source"]]
    revised = [row for row in rows if "2603.23640 as revised in June 2026" in row["source"]]
    assert [(row["device"], row["decode_tok_s"]) for row in revised] == [
        ("iPhone 16 Pro", "40.49"),
        ("iPhone 16 Pro", "24.96"),
        ("iPhone 16 Pro", "23.67"),
        ("Galaxy S24 Ultra", "12.21"),
        ("Galaxy S24 Ultra", "10.38"),
    ]
    first = [row["device"] for row in rows if "2603.23640v1" in row["source"]]
    assert first == ["Raspberry Pi 5 + Hailo-10H"]
    assert len(rows) == len(revised) + len(first)
