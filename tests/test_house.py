"""docs/house.md: where a thing would be added is a place that exists and has such things already."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import repro
from repro.core.paths import project_root

ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<where>[^|]+) \| (?P<more>[^|]*) ?\|$", re.MULTILINE)
HOUSE = (project_root() / "docs" / "house.md").read_text(encoding="utf-8")
ROWS = [row.groups() for row in ROW.finditer(HOUSE) if "`" in row["where"]]


def place(path: str) -> Path | None:
    """A path of the page in the package or the checkout; None if it is in neither."""
    there = (Path(repro.__file__).parent / path, project_root() / path)
    return next((one for one in there if one.exists()), None)


def test_each_question_stands_once() -> None:
    questions = [what for what, _, _ in ROWS]
    assert len(questions) == len(set(questions)) > 10
    for wanted in ("a quantizer", "a tree policy", "a phone or a board", "a table or a figure"):
        assert wanted in questions


def test_each_question_is_answered_by_a_file_that_is_there() -> None:
    section = HOUSE.partition("## Where would I look?")[2].partition("\n## ")[0]
    answers = re.findall(r"^\| (?!question|---)([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(answers) == 11
    for question, answer in answers:
        first = re.findall(r"`([\w/]+\.\w+)`", answer)[0]
        assert (there := place(first)) is not None, question
        assert there.is_file(), question


def test_the_page_names_no_file_that_is_gone() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.\w+)`", HOUSE))
    assert len(named) > 30
    assert [path for path in sorted(named) if place(path) is None] == []


@pytest.mark.parametrize(("what", "where", "more"), ROWS, ids=[row[0] for row in ROWS])
def test_the_answer_is_a_place_that_has_such_things(what: str, where: str, more: str) -> None:
    paths = [path for path in re.findall(r"`([^`]+)`", where) if "/" in path]
    places = [place(path) for path in paths]
    assert paths
    assert None not in places, paths
    group = re.search(r"registered as `(\w+)`", more)
    first = places[0]
    assert first is not None
    if group:
        files = [file.read_text(encoding="utf-8") for file in first.rglob("*.py")]
        assert any(f'register("{group[1]}"' in text for text in files), what
    elif first.is_dir():
        assert any(first.glob("*.yaml")) or any(first.glob("*/*.yaml")) or any(first.glob("*.py"))
