"""The early-exit predictor: its scores are the dense product's, its files are checked."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from repro.core.errors import InputError
from repro.methods.lever.exit_predictor import ExitPredictor, PredictorConfig
from tiny import decoder

RANK, TIED = 3, "llama-3.1"


def config_of(family: str = TIED, **changes: Any) -> PredictorConfig:
    shape = decoder(family).config
    own = PredictorConfig(
        target={"name": "tiny", "digest": "0"},
        layers=shape.layers,
        layer=1,
        hidden=shape.hidden,
        vocab=shape.vocab,
        rank=RANK,
        temperatures={"kd": 1.0, "candidates": 1.0},
    )
    return replace(own, **changes)


def change(hidden: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"inner": (RANK, hidden), "outer": (hidden, RANK)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def written(folder: Path, **changes: Any) -> Path:
    config = asdict(config_of()) | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(change(config["hidden"]), folder / "update.safetensors")
    return folder


def test_scores_are_those_of_the_whole_changed_projection() -> None:
    made, parts = decoder(TIED), change(64)
    predictor = ExitPredictor(config_of(), made, **parts)
    hidden = 5 * torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    norm = made.ends.final_norm
    assert norm is not None
    whole = made.ends.embedding @ (torch.eye(64) + parts["outer"] @ parts["inner"])
    dense = norm(hidden) @ whole.T
    candidates = [(3, 100, 3), (), (130,), tuple(range(131))]
    found = predictor.scores(hidden, candidates)
    assert [len(scores) for scores in found] == [3, 0, 1, 131]
    for row, tokens, scores in zip(dense, candidates, found, strict=True):
        torch.testing.assert_close(scores, row[list(tokens)], rtol=1e-4, atol=1e-3)


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    folder, made = written(tmp_path), decoder(TIED)
    predictor = ExitPredictor.load(folder, made)
    assert (predictor.layer, predictor.config) == (1, config_of())
    hidden = torch.randn(1, 64, generator=torch.Generator().manual_seed(5))
    expected = ExitPredictor(config_of(), made, **change(64)).scores(hidden, [(1, 2)])[0]
    assert torch.equal(predictor.scores(hidden, [(1, 2)])[0], expected)
    save_file({name: -part for name, part in change(64).items()}, folder / "update.safetensors")
    assert ExitPredictor.load(folder, made).digest != predictor.digest


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer": 0}, "layer is 0"),
        ({"layer": 4}, "1 to 3"),
        ({"rank": 4}, "expected"),
        ({"vocab": 99}, "99"),
        ({"layers": 6}, "6"),
        ({"bias": True}, "bias"),
    ],
)
def test_a_folder_that_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ExitPredictor.load(written(tmp_path, **changes), decoder(TIED))


def test_an_output_projection_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="embedding table"):
        ExitPredictor(config_of("llama-2"), decoder("llama-2"), **change(64))
