"""How deep the code is: frames of this project from the command to a layer of the target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import repro
from repro.models.transformer.decoder import Decoder
from tiny_project import write_project

MOST = 23
NOTED = 5
"""Further frames of `exercise`, which runs once a version of the code within the cache of what was built."""


def test_a_layer_is_few_frames_below_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, source = write_project(tmp_path), str(Path(repro.__file__).parent)
    layer, deepest = Decoder.layer, {True: (), False: ()}

    def noted(*arguments: Any, **named: Any) -> Any:
        frame, stack = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(source):
                stack.append(frame.f_code.co_qualname)
            frame = frame.f_back
        exercised = "exercise" in stack
        deepest[exercised] = max(deepest[exercised], tuple(reversed(stack)), key=len)
        return layer(*arguments, **named)

    monkeypatch.setattr(Decoder, "layer", noted)
    done = project.here("method=chain_sd", "prompts=1", "memo=false")
    assert done.returncode == 0, done.stderr
    for exercised, stack in deepest.items():
        assert stack[0] == "main"
        assert len(stack) + 1 <= MOST + NOTED * exercised, "\n".join(stack)
