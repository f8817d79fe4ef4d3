"""Right choices, by every way in which a dataset names them, worked out by hand."""

from typing import Any

import pytest

from repro.data.scoring import Choice

ROW: dict[str, Any] = {
    "colours": ["red", "green", "blue"],
    "letters": ["A", "B", "C"],
    "index": 2,
    "number": "3",
    "label": "C",
    "text": "blue",
    "marks": [0, 0, 1],
}


@pytest.mark.parametrize("answer_is", ["index", "number", "label", "text", "marks"])
def test_the_right_choice_by_hand(answer_is: str) -> None:
    """Blue is the third choice, however a row says so."""
    labels = "letters" if answer_is == "label" else ""
    scoring = Choice(choices=("colours",), answer=answer_is, answer_is=answer_is, labels=labels)
    assert scoring.options(ROW) == (("red", "green", "blue"), 2)
    target = scoring.target(ROW, "It is")
    assert (target.answer, target.reference) == (2, "blue")
    assert target.continuations[2] == ("It is", " blue")
