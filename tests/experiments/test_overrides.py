"""What we write as an override is read by Hydra as it was meant."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.core.paths import project_root
from repro.records.identity import portable_override


def read(text: str) -> object:
    (parsed,) = OverridesParser.create().parse_overrides([text])
    return parsed.value()


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "/a home ü/tmp dir",
        "ü",
        "it's",
        'a "word"',
        "a,b",
        "{a}",
        "[1]",
        "a=b",
        "a: b",
        "~/x",
        "$x",
        "#",
    ],
)
def test_a_text_comes_back(text: str) -> None:
    assert read(override("data_dir", text)) == text
    assert read(override("data_dir", Path("/top", text))) == str(Path("/top", text))


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(InputError, match="settings are numbers, text, lists and mappings"):
        override("setting", object())


def test_every_path_in_an_override_is_quoted() -> None:
    """In the source: a path that goes unquoted into an override fails where a folder has a space."""
    unquoted = re.compile(r'f"[\w.@+{}]*(folder|predictor|data_dir|results|outputs)=\{')
    assert unquoted.search('f"{role}.checkpoint.folder={root}/draft"')
    tops = [project_root() / top for top in ("src", "tests", "scripts", "workshop")]
    texts = {path: path.read_text(encoding="utf-8") for top in tops for path in top.rglob("*.py")}
    assert len(texts) > 500
    assert [
        path.name for path, text in texts.items() if unquoted.search(text) and path != Path(__file__)
    ] == []


def test_a_folder_in_a_committed_command_can_be_read_again() -> None:
    given = override("target.checkpoint.folder", "/home/ü/my models/ü 1")
    assert read(portable_override(given)) == "ü 1"
    assert portable_override("results=/home/me/results") == "results=results"


def test_numbers_of_numpy_and_pytorch_are_read_as_numbers() -> None:
    values = [np.float64(0.1), np.int64(3), np.bool_(True), np.float32(0.5), torch.tensor(0.25)]
    assert override("x", values) == "x=[0.1,3,true,0.5,0.25]"
    assert [override("x", one) for one in values] == ["x=0.1", "x=3", "x=true", "x=0.5", "x=0.25"]
    assert read(override("x", {"a": np.linspace(0, 1, 3)})) == {"a": [0.0, 0.5, 1.0]}
    assert read(override("x", [np.str_("a b"), np.float64("1e-7")])) == ["a b", 1e-7]
