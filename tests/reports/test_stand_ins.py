"""What a table says of weights is what its records say."""

from __future__ import annotations

from typing import Any

import pytest

from invented_tables import table_spec
from records import record
from repro.records.record import Record
from repro.reports.reference.names import OF_STAND_INS
from repro.reports.tables.build import build

SMOL = {"name": "smollm2_135m_instruct", "hub": {"repo": "HuggingFaceTB/SmolLM2-135M-Instruct"}}
SECTION: dict[str, Any] = {
    "title": "T",
    "rows": {"by": ["method"]},
    "columns": [{"key": "x", "heading": "X", "value": "x"}],
    "footnotes": [f"{OF_STAND_INS}SmolLM2 computes.", "Five prompts."],
}


def of(checkpoint: dict[str, Any], **config: Any) -> Record:
    """A record of which the weights are another model's than the billed one's."""
    given = {"target": {"checkpoint": checkpoint}, **config}
    return record("lever", {"x": 1.0}, labels={"target": "Qwen3-8B"}, weights="proxy", config=given)


@pytest.mark.parametrize(
    ("checkpoint", "named"),
    [
        (SMOL, "SmolLM2-135M"),
        (SMOL | {"hub": {"repo": "Qwen/Qwen2.5-Coder-1.5B-Instruct"}}, "Qwen2.5-Coder-1.5B-Instruct"),
        (SMOL | {"folder": "qwen2.5-coder"}, "qwen2.5-coder"),
        ({"name": "qwen3_8b", "hub": {"repo": "Qwen/Qwen3-8B"}}, "qwen3_8b"),
    ],
)
def test_a_title_names_the_weights_that_computed(checkpoint: dict[str, Any], named: str) -> None:
    """A checkpoint's file whose folder or repository was changed has still its own name."""
    computed = of(checkpoint)
    table = build(table_spec("t", SECTION), [computed], {}, {computed.key})
    assert table.stand_ins == f"{named} computes in place of Qwen3-8B"


def test_footnotes_about_stand_ins_are_left_out_of_own_weights() -> None:
    computed, own = of(SMOL), of(SMOL, weights="own")
    made = {
        name: build(table_spec("t", SECTION), [one], {}, {one.key}).footnotes
        for name, one in (("stand_in", computed), ("own", own))
    }
    assert made == {"stand_in": ("SmolLM2 computes.", "Five prompts."), "own": ("Five prompts.",)}
