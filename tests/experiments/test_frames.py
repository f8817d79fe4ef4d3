"""How deep the code is: frames of this project from the command to a layer of the target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import repro
from repro.models.transformer.decoder import Decoder
from tiny_project import Project

MOST = 23


def test_a_layer_is_few_frames_below_the_command(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(repro.__file__).parent)
    layer, deepest = Decoder.layer, list[str]()

    def noted(*arguments: Any, **named: Any) -> Any:
        nonlocal deepest
        frame, stack = sys._getframe(1), list[str]()
        while frame is not None:
            if frame.f_code.co_filename.startswith(source):
                stack.insert(0, frame.f_code.co_qualname)
            frame = frame.f_back
        deepest = max(deepest, stack, key=len)
        return layer(*arguments, **named)

    monkeypatch.setattr(Decoder, "layer", noted)
    done = project.here("method=chain_sd", "prompts=1", "memo=false")
    assert done.returncode == 0, done.stderr
    assert deepest[0] == "main"
    assert len(deepest) + 1 <= MOST, "\n".join(deepest)
