"""Right choices, by every way in which a dataset names them, worked out by hand."""

from typing import Any

import pytest

from repro.core.errors import InputError
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


@pytest.mark.parametrize(
    ("answer_is", "answer"),
    [
        ("index", 1.5),
        ("index", True),
        ("number", "2.0"),
        ("number", False),
        ("label", True),
        ("label", 1.5),
        ("text", True),
        ("marks", [1, 0, 1]),
        ("marks", [0, 1]),
        ("marks", [0, 0, 0]),
        ("marks", "001"),
        ("marks", 1),
        *((kind, None) for kind in ("index", "number", "label", "text", "marks")),
    ],
)
def test_an_answer_of_unsure_meaning_is_none(answer_is: str, answer: object) -> None:
    labels = "places" if answer_is == "label" else ""
    scoring = Choice(choices=("colours",), answer="answer", answer_is=answer_is, labels=labels)
    with pytest.raises(InputError, match=r"is none of|is null|where a text is needed"):
        scoring.options(ROW | {"answer": answer, "places": [1, 2, 3]})


def test_choices_may_be_numbers_and_more_than_letters() -> None:
    scoring = Choice(choices=("years",), answer="answer", answer_is="text")
    target = scoring.target({"years": [*range(1990, 2020)], "answer": 2019}, "It was")
    assert (target.answer, target.continuations[29]) == (29, ("It was", " 2019"))
    lettered = Choice(choices=("years",), answer="answer", continuation=" {letter}")
    with pytest.raises(InputError, match="there are no letters after Z"):
        lettered.target({"years": [*range(1990, 2020)], "answer": 0}, "It was")
