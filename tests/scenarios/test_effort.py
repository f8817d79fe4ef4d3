"""A cell counts the layers that compute it, those of the target's own text included."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.records.provenance import counting_layers
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import write_project


@pytest.mark.parametrize("method", ["std", "chain_sd"])
def test_a_cell_computes_all_at_first_and_nothing_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    config = write_project(tmp_path / "project").config(f"method={method}")
    layers = []
    for _ in range(2):
        with counting_layers() as count:
            GenerationScenario(config).run(lambda *_: None)
        layers.append(count.layers)
    assert layers[0] > 0 == layers[1]
