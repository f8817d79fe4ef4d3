"""Model files whose checkpoint is an EAGLE-3 head, in cells: emulated, on this machine, and in vain."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.methods.speculative.drafting.head_model import HeadModel
from repro.models.runtime.placement import STREAMED
from repro.models.transformer import weights
from scripts import unpickle
from tiny import here
from tiny_eagle import raw_config, tensors_of, write_head
from tiny_project import Project, write_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny project whose draft is a head for its target."""
    made = write_project(tmp_path_factory.mktemp("heads"))
    target = weights.load(made.root / "target")
    raw = raw_config(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 0, 1]})
    write_head(made.root / "head", raw, tensors_of(raw))
    head = override("draft.checkpoint.folder", made.root / "head")
    named = "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct"
    return made.apart(made.root, "model@draft=smollm2_135m_eagle3", head, named)


@pytest.fixture(autouse=True)
def caches(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(project.root / "cache"))


def cell(project: Project, *overrides: str) -> Any:
    from repro.scenarios.generation.scenario import GenerationScenario

    return GenerationScenario(project.config(*overrides))


@pytest.mark.parametrize("method", ["chain_sd", "edgellm", "specinfer"])
def test_a_head_drafts_on_an_emulated_device(project: Project, method: str) -> None:
    """A cell fails where the text is not the target's own; a memo changes nothing but the time it takes."""
    record = project.record(f"method={method}")
    plain = project.apart(project.out / "apart").record(f"method={method}", "memo=false")
    assert record.status == plain.status == "done", record.error
    assert record.values == plain.values
    assert record.values["exact_match"] == 1.0


def test_a_head_drafts_on_this_machine(project: Project) -> None:
    record = project.record("method=chain_sd", "device=local_cpu", "repeats=1", "cooldown=0")
    assert record.status == "done", record.error
    assert record.provenance.weights == "real"
    assert record.values["exact_match"] == 1.0


def test_a_billed_head_is_a_proxy(project: Project) -> None:
    billed = ("model@target=qwen3_8b_q4_0", override("target.checkpoint.folder", project.root / "target"))
    head = ("model@draft=eagle3_qwen3_8b", override("draft.checkpoint.folder", project.root / "head"))
    record = project.record("method=chain_sd", *billed, *head)
    assert record.status == "done", record.error
    assert record.provenance.weights == "proxy"


def test_what_a_head_is(project: Project) -> None:
    made = cell(project)
    draft, target = made.draft, made.target
    assert isinstance(draft, HeadModel)
    assert draft.tokenizer is target.tokenizer
    assert draft.digest.endswith(target.digest)
    assert draft.model_cost.shape.features == 3 * target.decoder_config.hidden
    assert draft.weights == "real"


def test_an_entry_that_was_not_read_before_has_logits_of_its_own(project: Project, tmp_path: Path) -> None:
    """What is remembered of a head from before is not that of the head as it is read now."""
    known = {cell(project).draft.outputs_key()}
    for changes in ({"norm_before_residual": True}, {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]}):
        folder = shutil.copytree(project.root / "head", tmp_path / next(iter(changes)))
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(raw | changes), encoding="utf-8")
        draft = cell(project, override("draft.checkpoint.folder", folder)).draft
        known |= {draft.outputs_key(), f"{weights.digest(folder)[:24]}{draft.outputs_key()[24:]}"}
    assert len(known) == 5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("draft.dtype=int4",), "dtype"),
        (("+draft.rounded=4",), "heads are not rounded"),
        (("+model/shape@draft.shape=qwen3_0_6b",), "the shape that is billed is no head"),
        (("method=draft",), "runs no target"),
    ],
)
def test_what_cannot_work(project: Project, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cell(project, *overrides).check()


def test_a_whole_model_is_not_billed_as_a_head(project: Project) -> None:
    folder = override("draft.checkpoint.folder", project.root / "draft")
    with pytest.raises(InputError, match="the shape that is billed is an EAGLE-3 head"):
        _ = cell(project, folder, "+model/shape@draft.shape=eagle3_qwen3_8b").draft


def test_a_head_for_another_target(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(project.root / "head", folder)
    config = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(
        config.replace('"vocab_size": 2', '"vocab_size": 12'), encoding="utf-8"
    )
    with pytest.raises(InputError, match="is for a target of 12"):
        _ = cell(project, override("draft.checkpoint.folder", folder)).draft


def test_a_head_is_not_streamed(project: Project) -> None:
    draft = cell(project).draft
    with closing(here()) as device, pytest.raises(InputError, match="stays in memory"):
        draft.local_session("draft", device, STREAMED)


def test_pickled_heads_are_refused_until_they_are_written_anew(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, right = tmp_path / "pickled", load_file(project.root / "head" / "model.safetensors")
    folder.mkdir()
    shutil.copy(project.root / "head" / "config.json", folder)
    torch.save(right, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        _ = cell(project, override("draft.checkpoint.folder", folder)).draft
    assert unpickle.main([str(folder)]) == 0
    draft = cell(project, override("draft.checkpoint.folder", folder)).draft
    written = load_file(folder / "model.safetensors")
    assert written.keys() == right.keys()
    assert all(torch.equal(written[name], right[name]) for name in right)
    assert draft.model_cost == cell(project).draft.model_cost
    assert unpickle.main([str(folder)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_pickle_that_holds_more_than_tensors(tmp_path: Path) -> None:
    torch.save({"a": Path("b")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="more than tensors"):
        unpickle.unpickle(tmp_path)
    with pytest.raises(InputError, match=r"has no pytorch_model\.bin"):
        unpickle.unpickle(tmp_path / "nothing")
