"""Model files whose checkpoint is an EAGLE-3 head or Medusa heads, in cells: emulated, here, and in vain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.models.transformer import weights
from repro.scenarios.generation.scenario import GenerationScenario
from scripts import unpickle
from tiny_eagle import raw_config, tensors_of, write_head
from tiny_medusa import HEADS, write_heads
from tiny_medusa import tensors_of as medusa_tensors
from tiny_project import Project, write_project

pytestmark = pytest.mark.usefixtures("cache_of_project")
MODELS = {"eagle": "smollm2_135m_eagle3", "medusa": "smollm2_135m_medusa", "public": "smollm2_135m_medusa"}
"""The model of each folder of heads; `public` has the form that the public heads for Vicuna have."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny project with heads for its target."""
    made = write_project(tmp_path_factory.mktemp("heads"))
    target = weights.load(made.root / "target")
    raw = raw_config(target, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 0, 1]})
    write_head(made.root / "eagle", raw, tensors_of(raw))
    sizes = (target.config.hidden, target.config.vocab)
    write_heads(made.root / "medusa", medusa_tensors(*sizes, own=False))
    write_heads(made.root / "public", medusa_tensors(*sizes), pickled=True)
    return made.apart(made.root, "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct")


def draft_in(folder: Path) -> str:
    return override("draft.checkpoint.folder", folder)


def drafting(project: Project, heads: str = "eagle") -> tuple[str, ...]:
    """What chooses a folder of heads as the draft."""
    return f"model@draft={MODELS[heads]}", draft_in(project.root / heads)


def cell(project: Project, *overrides: str, heads: str = "eagle") -> GenerationScenario:
    length = () if heads == "eagle" else (f"method.length={HEADS}",)
    return GenerationScenario(
        project.config(*drafting(project, heads), "method=chain_sd", *length, *overrides)
    )


@pytest.mark.parametrize(
    ("heads", "method"),
    [
        *(("eagle", (f"method={method}",)) for method in ("chain_sd", "edgellm", "specinfer")),
        *((form, ("method=chain_sd", f"method.length={HEADS}")) for form in ("medusa", "public")),
    ],
)
def test_heads_draft_on_an_emulated_device(project: Project, heads: str, method: tuple[str, ...]) -> None:
    """A cell fails where the text is not the target's own; a memo changes nothing but the time it takes."""
    asked = (*drafting(project, heads), *method)
    record = project.record(*asked)
    plain = project.apart(project.out / "apart").record(*asked, "memo=false")
    assert record.status == plain.status == "done", record.error
    assert record.values == plain.values
    assert record.values["exact_match"] == 1.0


def test_a_head_drafts_on_this_machine(project: Project) -> None:
    local = ("device=local_cpu", "repeats=1", "cooldown=0")
    record = project.record(*drafting(project), "method=chain_sd", *local)
    assert record.status == "done", record.error
    assert record.provenance.weights == "real"
    assert record.values["exact_match"] == 1.0


def test_billed_heads_are_a_proxy(project: Project) -> None:
    target = override("target.checkpoint.folder", project.root / "target")
    eagle = ("model@target=qwen3_8b_q4_0", "model@draft=eagle3_qwen3_8b", draft_in(project.root / "eagle"))
    medusa = (
        "model@target=vicuna_7b_fp16",
        "model@draft=vicuna_7b_medusa",
        draft_in(project.root / "medusa"),
    )
    with pytest.raises(InputError, match="bills 5 Medusa heads, and its checkpoint has 4"):
        _ = cell(project, *medusa, target, heads="medusa").draft
    for heads in (eagle, (*medusa, "draft.shape.medusa=4", "method.length=4", "device=a100")):
        record = project.record(*heads[:2], "method=chain_sd", target, *heads[2:])
        assert record.status == "done", record.error
        assert record.provenance.weights == "proxy"


def test_an_entry_that_was_not_read_before_has_logits_of_its_own(project: Project, tmp_path: Path) -> None:
    """What is remembered of a head from before is not that of the head as it is read now."""
    known = {cell(project).draft.outputs_key()}
    for changes in ({"norm_before_residual": True}, {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]}):
        folder = shutil.copytree(project.root / "eagle", tmp_path / next(iter(changes)))
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(raw | changes), encoding="utf-8")
        draft = cell(project, draft_in(folder)).draft
        known |= {draft.outputs_key(), f"{weights.digest(folder)[:24]}{draft.outputs_key()[24:]}"}
    assert len(known) == 5


@pytest.mark.parametrize(
    ("heads", "overrides", "message"),
    [
        ("eagle", ("draft.dtype=int4",), "dtype"),
        ("eagle", ("+draft.rounded=4",), "heads are not rounded"),
        ("eagle", ("+model/shape@draft.shape=qwen3_0_6b",), "the shape that is billed is no head"),
        ("eagle", ("method=draft",), "runs no target"),
        ("medusa", ("+draft.rounded=4",), "heads are not rounded"),
        ("medusa", ("+model/shape@draft.shape=eagle3_qwen3_8b",), "is Medusa heads, and the shape that is"),
    ],
)
def test_what_cannot_work_is_refused(
    project: Project, heads: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        cell(project, *overrides, heads=heads).check()


def test_more_tokens_than_heads_fail_the_cell(project: Project) -> None:
    note = project.cell(*drafting(project, "medusa"), "method=chain_sd", f"method.length={HEADS + 1}")
    assert "4 Medusa heads foresee 4 tokens, and token 5 was asked for" in str(note.error)


def test_a_whole_model_is_not_billed_as_a_head(project: Project) -> None:
    shape = "+model/shape@draft.shape=eagle3_qwen3_8b"
    with pytest.raises(InputError, match="the shape that is billed is an EAGLE-3 head"):
        _ = cell(project, draft_in(project.root / "draft"), shape).draft


def test_heads_for_another_target_are_refused(project: Project, tmp_path: Path) -> None:
    config = (project.root / "eagle" / "config.json").read_text(encoding="utf-8")
    folder = shutil.copytree(project.root / "eagle", tmp_path / "eagle")
    other = config.replace('"vocab_size": 2', '"vocab_size": 12')
    (folder / "config.json").write_text(other, encoding="utf-8")
    write_heads(tmp_path / "medusa", medusa_tensors(16, 50))
    for heads, said in (("eagle", "of 12"), ("medusa", "of 50 tokens and hidden rows of 16")):
        with pytest.raises(InputError, match=f"is for a target {said}"):
            _ = cell(project, draft_in(tmp_path / heads), heads=heads).draft


def test_pickled_heads_are_refused_until_they_are_written_anew(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, right = tmp_path / "pickled", load_file(project.root / "eagle" / "model.safetensors")
    folder.mkdir()
    shutil.copy(project.root / "eagle" / "config.json", folder)
    torch.save(right, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        _ = cell(project, draft_in(folder)).draft
    assert unpickle.main([str(folder)]) == 0
    draft = cell(project, draft_in(folder)).draft
    written = load_file(folder / "model.safetensors")
    assert written.keys() == right.keys()
    assert all(torch.equal(written[name], right[name]) for name in right)
    assert draft.model_cost == cell(project).draft.model_cost
    assert unpickle.main([str(folder)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_pickle_that_holds_more_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"a": Path("b")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="more than tensors"):
        unpickle.unpickle(tmp_path)
    with pytest.raises(InputError, match=r"has no pytorch_model\.bin"):
        unpickle.unpickle(tmp_path / "nothing")
