"""Medusa heads in cells: brought to Table I, or as they are with their recorded ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from repro.core.overrides import override
from repro.methods.speculative.drafting.head_ranks import RANKS_FILE, Calibration, HeadRanks
from repro.methods.speculative.drafting.verification_tree import (
    estimate_tree,
    measured_acceptance,
    search_tree,
)
from repro.scenarios.generation.draft_calibration import head_match
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import SHAPE, Project, write_project
from workshop.training import head_ranks

IDS = ["ghidorah.table1.mbpp.width2", "ghidorah.table1.mbpp.width4"]
MATCH = f"calibrate_draft_to=[{','.join(IDS)}]"
HEADS = 5


def write_heads(folder: Path, heads: int = HEADS) -> None:
    """Heads that say something other than their target's next token, with its own projection."""
    folder.mkdir()
    chance, width = torch.Generator().manual_seed(0), int(SHAPE["hidden_size"])
    tensors = {}
    for head in range(heads):
        tensors[f"{head}.0.linear.weight"] = torch.randn(width, width, generator=chance) / 8
        tensors[f"{head}.0.linear.bias"] = torch.zeros(width)
    save_file(tensors, folder / "heads.safetensors")
    raw = {"medusa_num_heads": heads, "medusa_num_layers": 1, "base_model_name_or_path": "target"}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("medusa"))
    write_heads(made.root / "heads")
    return made.apart(made.out, *drafts(made.root / "heads"), "max_tokens=24")


def drafts(folder: Path) -> Sequence[str]:
    named = "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct"
    return "model@draft=smollm2_135m_medusa", override("draft.checkpoint.folder", folder), named


@pytest.fixture(autouse=True)
def _rows(cache_of_project: None, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_DATA", str(project.root / "data"))


def test_matched_heads_decode_with_mt_bench_s_tree_and_say_what_was_fitted(project: Project) -> None:
    record = project.record("method=medusa", "method.width=8", MATCH)
    assert record.status == "done", record.error
    match = head_match(IDS)
    assert record.values["exact_match"] == 1.0
    assert record.values["tree"] == str(estimate_tree(match.trees.accuracies, 8))
    assert set(match.cells) <= set(record.provenance.fitted)
    assert record.labels["agreement"] == "matched"
    native = project.cell("method=medusa", "method.width=8")
    assert "without recorded ranks" in native.error
    plain = project.record("method=medusa", "method.width=8", MATCH, "memo=false")
    assert plain.values == record.values


def test_pair_and_seed_are_part_of_the_key_and_calibration_prompts_are_not(project: Project) -> None:
    def key(*more: str) -> str:
        return GenerationScenario(project.config("method=medusa", *more)).key

    other = MATCH.replace("mbpp", "gsm8k")
    assert len({key(), key(MATCH), key(other), key(MATCH, "seed=1")}) == 4
    assert key(MATCH, "calibration_prompts=7") == key(MATCH)


def test_a_draft_with_other_heads_is_said(project: Project, tmp_path: Path) -> None:
    write_heads(tmp_path / "few", heads=2)
    note = project.cell("method=medusa", MATCH, override("draft.checkpoint.folder", tmp_path / "few"))
    assert "calibrate_draft_to brings 5 Medusa heads" in note.error
    assert "has 2" in note.error
    whole = (
        override("draft.checkpoint.folder", project.root / "draft"),
        "draft.checkpoint.shares_embeddings_with=null",
    )
    note = project.cell("method=chain_sd", MATCH, "model@draft=smollm2_135m_draft", *whole)
    assert "has none; choose a draft with 5 heads" in note.error


def test_recorded_ranks_say_how_the_same_rows_are_decoded(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_heads(tmp_path / "heads")
    models = ["--target=smollm2_135m", "--draft=smollm2_135m_medusa", "--rows=humaneval:0:2"]
    overrides = [
        override("target.checkpoint.folder", project.root / "target"),
        *drafts(tmp_path / "heads")[1:],
    ]
    head_ranks.main([*models, "--tokens=24", *overrides])
    assert f"answers, {tmp_path}/heads/{RANKS_FILE}" in capsys.readouterr().out
    ranks = HeadRanks.load(tmp_path / "heads" / RANKS_FILE)
    assert len(ranks.begins) == 2
    for width in (2, 8):
        tree = search_tree(Calibration.of(ranks), width)
        own = (override("draft.checkpoint.folder", tmp_path / "heads"), f"method.width={width}")
        record = project.record("method=medusa", *own)
        assert record.status == "done", record.error
        assert record.values["tree"] == str(tree)
        assert record.values["acceptance_length"] == pytest.approx(measured_acceptance(tree, ranks))
