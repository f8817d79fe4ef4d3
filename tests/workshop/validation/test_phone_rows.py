"""The measured rows: what is read, and what stands apart."""

from __future__ import annotations

from collections import Counter

import pytest

from repro.core.errors import InputError
from repro.models.costs.model_cost import PRECISIONS
from workshop.validation.phones import rows as module
from workshop.validation.phones.chips import peaks, sheets
from workshop.validation.phones.rows import model_cost, phone_rows, shapes, stored_format

ROWS = phone_rows()


def test_every_row_is_read_and_named_once() -> None:
    assert len(ROWS) == len({row.id for row in ROWS}) >= 566 + 217
    assert Counter(row.apart for row in ROWS)[""] >= 456


def test_every_row_that_a_fit_sees_has_a_chip_a_shape_and_a_format() -> None:
    for row in (row for row in ROWS if not row.apart):
        cost = model_cost(row)
        assert row.soc in sheets()
        assert row.bits == cost.stored.bits > 1
        assert row.format in PRECISIONS
        assert min(peaks(row.soc, row.processor, row.threads)[cost.stored.arithmetic]) > 0


@pytest.mark.parametrize(
    ("printed", "engine", "name"),
    [
        ("Q4_0_4_4", "llama_cpp_cpu", "q4_0"),
        ("Q4 (Ollama default)", "llama_cpp_cuda", "q4_k_m"),
        ("Q5_K_M", "llama_cpp_npu", "q5_k_m"),
        ("BF16", "xnnpack_cpu", "fp16"),
        ("16a8w", "qnn_npu", "w8a8"),
        ("w4a16_g128", "rkllm_npu", "int4"),
    ],
)
def test_a_printed_format_is_the_one_that_people_name(printed: str, engine: str, name: str) -> None:
    assert stored_format(printed, engine) == name


def test_shapes_have_the_parameters_that_models_are_named_for() -> None:
    known = {"qwen3_4b": 4.02, "llama_3_2_1b": 1.24, "phi_3_mini": 3.82, "falcon3_7b": 7.46, "gemma_2b": 2.51}
    known |= {"smollm2_1_7b": 1.71, "deepseek_r1_1_5b": 1.78, "qwen2_5_1_5b": 1.54, "phi_4_mini": 3.84}
    for name, billions in known.items():
        assert shapes()[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_time_to_the_first_token_is_no_rate() -> None:
    for row in ROWS:
        if row.first_token is not None:
            assert row.prefill is None, f"{row.id} has a rate that was derived from a time"


def test_a_number_that_is_none_is_an_error_with_its_row() -> None:
    given = dict(module.reference("phones.csv")[0])
    for wrong, said in (("fast", "no number"), ("-3", "above 0"), ("inf", "above 0")):
        with pytest.raises(InputError, match=f"{given['id']}.*{said}"):
            module._row({**given, "decode_tok_s": wrong})


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
