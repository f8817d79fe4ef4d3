"""Bad input gives one error that names what is wrong and what would be right, before long work, and costs no
record that is there."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.experiments import cli
from tiny_checkpoints import write_tokenizer
from tiny_project import Project

QUICK = ("experiment=quickstart", "method=chain_sd")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one record in it; no cell of a test may begin its work."""
    project.record("experiment=quickstart", "method=std")

    def compute(*_: Any) -> None:
        raise AssertionError("long work began")

    monkeypatch.setattr("repro.scenarios.base.Scenario.run", compute)
    return project


def complaint(project: Project, *overrides: str) -> str:
    """What a cell with bad input says; the record that was there is as it was."""
    before = {p: p.read_bytes() for p in project.store.folder.glob("*.jsonl")}
    try:
        note = project.cell(*overrides)
        assert note.state == "failed", "nothing was wrong"
        said = note.error
    except InputError as wrong:
        said = str(wrong)
    after = {p: p.read_bytes() for p in project.store.folder.glob("*.jsonl")}
    assert before.items() <= after.items()
    assert before
    return said


# --- the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("method=chain_ds", "there is no method 'chain_ds'. Did you mean chain_sd? All "),
        ("device=oneplus_21", "there is no device 'oneplus_21'. Did you mean oneplus_15"),
        ("model@target=smolm2_135m", "there is no model 'smolm2_135m'. Did you mean smollm2_135m"),
        ("experiment=lever/fig99", "there is no experiment 'lever/fig99'. Did you mean lever/fig"),
        ("experiment=fig10", "there is no experiment 'fig10'. Did you mean lever/fig10 or "),
        ("experiment/lever=fig10", "experiment/lever=fig10 is written experiment=lever/fig10"),
        ("model=smollm2_135m", "a model is a target or a draft: model@target=smollm2_135m or model@draft="),
        ("model@draft=null", "model@draft=null: a group has no value null; leave it out with ~model@draft"),
        ("--hlep", "there is no flag --hlep; did you mean --help?"),
        ("prompts=100000", "prompts is 100000, but dataset 'humaneval' has 3 rows; choose prompts=3"),
        ("skip=2", "prompts is 2 after skip=2, but dataset 'humaneval' has 3 rows; choose prompts=1 or"),
        ("device.dram.budget.value=0.0001", "of OnePlus 12's budget of 0.10 MB only"),
        ("method.lenght=4", "method chain_sd has no setting 'lenght'. Did you mean length? Choices: length"),
        (
            "promts=4",
            "there is no setting 'promts'. Did you mean prompts or prompt_tokens? Choices: calibrate_draft",
        ),
        ("method.length=hello", "method.length=hello: Value 'hello' of type 'str' could not be converted"),
        ("+promts=4", "there is no setting 'promts'. Did you mean prompts"),
        ("precision=q4_0", "no setting 'precision'; write target.precision or draft.precision. Choices: "),
        ("+precision=q4_0", "there is no setting 'precision'; write target.precision or draft.precision. "),
        ("top_p=0.9", "there is no setting 'top_p'; write sampling.top_p. Choices: "),
        ("device.bandwidth=9", "has no setting 'bandwidth'; write device.dram.bandwidth.value or "),
        ("+sampling.temprature=1", "sampling: there is no field 'temprature'. Did you mean temperature?"),
        ("+device.flsh=1", "OnePlus 12: there is no entry 'flsh'. Did you mean flash?"),
        ("~method", "method is None; choose one with method=NAME"),
        ("sampling=null", "sampling is None; it must be a mapping, such as {temperature: 0}"),
        (
            "labels=日本",
            "labels=日本 cannot be read; quote a value with special characters: 'labels=\"日本\"'",
        ),
        (
            "engine.devices.Tegra X2.flash.bandwidth.value=1",
            "only a mapping takes: 'engine.devices={Tegra X2: {flash: {bandwidth: {value: 1}}}}'",
        ),
        ("prompts", "'prompts' is no setting; write NAME=VALUE"),
        (
            "device.dram.bandwidth.value=50",
            "are those of its chip, Snapdragon 8 Gen 3, under engine llama_cpp_cpu",
        ),
        ("prompts=-1", "prompts is -1; it must be a whole number of at least 1"),
        ("sweep=again", "there is no sweep mode 'again'. Choices: force, list, retry, run"),
        ("wandb.mode=sometimes", "wandb.mode is 'sometimes'; it must be null or online, offline or disabled"),
        ("results=/dev/null/here", "results cannot be written to /dev/null/here/records: Not a directory"),
        ("outputs=/dev/null/here", "Not a directory; choose other folders with results= and outputs="),
        ("results=null", "results is "),
        ("outputs=''", "outputs is "),
    ],
)
def test_the_command_says_one_thing_and_fails(
    shared: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    argument: str,
    said: str,
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    monkeypatch.setattr(
        "hydra._internal.logging_config.configure_logging", lambda *_: None
    )  # logging is this process's, and pytest's
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    monkeypatch.setattr(sys, "argv", ["repro", *shared.apart(tmp_path).overrides, argument])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    assert "Traceback" not in out + err


def test_one_error_for_all_cells_of_a_sweep(shared: Project, tmp_path: Path) -> None:
    done = shared.apart(tmp_path).here("experiment=quickstart", "target.checkpoint.folder=/not/there")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "folder '/not/there' is not there; tried" in done.stderr
    assert "in 7 of 7 cells" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


# --- cells --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("target.checkpoint.folder=/not/there",), "smollm2_135m_instruct: folder '/not/there' is not there"),
        (
            ("method=std", "target.precision=fp16"),
            "target weights needs 16.38 GB, but of OnePlus 12's budget of 12.00 GB only",
        ),
        (("max_tokens=500",), "prompt and answer do not fit the context of target Qwen3-8B, 512 tokens"),
        (("device=local_cpu",), "Local CPU computes for real, but Qwen3-8B is only billed there"),
        (("target.precision=q4",), "there is no precision 'q4'. Did you mean q4_"),
        (("data_dir=/not/there",), "data_dir names '/not/there', which is no folder"),
        (("~device.dram.budget",), "OnePlus 12: the device file lacks dram.budget"),
        (("method=sti", "resident=1.0"), "sti streams all layers"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(project: Project, overrides: tuple[str, ...], said: str) -> None:
    assert said in complaint(project, *QUICK, *overrides)


def test_a_corrupt_checkpoint(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(project.root / "target", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    said = complaint(project, *QUICK, override("target.checkpoint.folder", folder))
    assert f"{weights} is corrupt" in said


def test_a_pair_of_different_tokenizers(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(project.root / "draft", folder)
    write_tokenizer(folder, control=["<|answer|>", "<|user|>", "<|end|>"])
    said = complaint(project, *QUICK, override("draft.checkpoint.folder", folder))
    assert "id 0 is '<|end|>' to the target, '<|answer|>' to the draft" in said
    assert "choose a draft of the target's family" in said


def test_a_dataset_without_the_column(project: Project, tmp_path: Path) -> None:
    (tmp_path / "openai_humaneval.jsonl").write_text(
        json.dumps({"prompt": "p", "task_id": "t"}) + "\n", encoding="utf-8"
    )
    said = complaint(project, *QUICK, override("data_dir", tmp_path))
    assert "needs the column canonical_solution, test, entry_point; its rows have prompt, task_id" in said


@no_gpu
@pytest.mark.parametrize("choice", ["device=local_cuda", "host=cuda"])
def test_no_gpu(project: Project, choice: str) -> None:
    said = complaint(project, *QUICK, choice)
    assert "this run needs a GPU, and torch sees none; choose host=cpu and a device without one" in said


def test_a_full_disk(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project.out)._replace(free=1_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert "MB free and the run needs 20.0 MB; free some space" in complaint(project, *QUICK)


def test_a_disk_that_fills_up_while_a_cell_runs(
    shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    project = shared.apart(tmp_path)
    kept = project.record("experiment=quickstart", "method=std")

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("repro.experiments.sweep.write_atomically", full)
    project.cell("experiment=quickstart", "method=draft")
    (failed,) = (record for record in project.store.all() if record != kept)
    assert (failed.status, failed.provenance.trace) == ("failed", None), "its timeline is not there"
    monkeypatch.setattr("repro.records.store.Writer.put", full)
    note = project.cell("experiment=quickstart", "method=flash_ar")
    assert (note.state, note.seconds) == ("failed", None)
    assert note.error.startswith("the cell flash_ar could not be written: No space left on device")
    assert {record.key for record in project.store.all()} == {kept.key, failed.key}
    assert project.store.problems() == []
