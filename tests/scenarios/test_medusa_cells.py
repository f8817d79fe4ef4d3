"""Medusa heads as a model file: cells that draft with them, and what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.models.transformer import weights
from tiny_medusa import HEADS, tensors_of, write_heads
from tiny_project import Project, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny project whose draft is Medusa heads for its target, in our form; the public one lies beside."""
    made = write_project(tmp_path_factory.mktemp("medusa"))
    c = weights.load(made.root / "target").config
    write_heads(made.root / "heads", tensors_of(c.hidden, c.vocab, own=False))
    write_heads(made.root / "public", tensors_of(c.hidden, c.vocab), pickled=True)
    named = "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct"
    heads = override("draft.checkpoint.folder", made.root / "heads")
    return made.apart(made.root, "model@draft=smollm2_135m_medusa", heads, named, "method=chain_sd")


@pytest.fixture(autouse=True)
def caches(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(project.root / "cache"))


def cell(project: Project, *overrides: str) -> Any:
    from repro.scenarios.generation.scenario import GenerationScenario

    return GenerationScenario(project.config(*overrides))


@pytest.mark.parametrize("form", ["heads", "public"])
def test_heads_draft_on_an_emulated_device(project: Project, form: str) -> None:
    """A cell fails where the text is not the target's own; a memo changes nothing but the time it takes."""
    folder = override("draft.checkpoint.folder", f"{project.root}/{form}")
    record = project.record(f"method.length={HEADS}", folder)
    plain = project.apart(project.out / "apart").record(f"method.length={HEADS}", folder, "memo=false")
    assert record.status == plain.status == "done", record.error
    assert record.values == plain.values
    assert record.values["exact_match"] == 1.0


def test_more_tokens_than_heads(project: Project) -> None:
    note = project.cell(f"method.length={HEADS + 1}")
    assert "4 Medusa heads foresee 4 tokens, and token 5 was asked for" in str(note.error)


def test_billed_heads_are_a_proxy(project: Project) -> None:
    billed = ("model@target=vicuna_7b_fp16", override("target.checkpoint.folder", project.root / "target"))
    heads = ("model@draft=vicuna_7b_medusa", override("draft.checkpoint.folder", project.root / "heads"))
    with pytest.raises(InputError, match="bills 5 Medusa heads, and its checkpoint has 4"):
        _ = cell(project, *billed, *heads).draft
    record = project.record(*billed, *heads, "draft.shape.medusa=4", "method.length=4", "device=a100")
    assert record.status == "done", record.error
    assert record.provenance.weights == "proxy"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("+draft.rounded=4",), "heads are not rounded"),
        (("+model/shape@draft.shape=eagle3_qwen3_8b",), "is Medusa heads, and the shape that is billed"),
        (("method=draft",), "runs no target"),
    ],
)
def test_what_cannot_work(project: Project, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cell(project, *overrides).check()


def test_heads_for_a_target_of_another_width(project: Project, tmp_path: Path) -> None:
    write_heads(tmp_path, tensors_of(16, 50))
    with pytest.raises(InputError, match="is for a target of 50 tokens and hidden rows of 16"):
        _ = cell(project, override("draft.checkpoint.folder", tmp_path)).draft
