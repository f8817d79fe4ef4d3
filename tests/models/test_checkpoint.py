"""Descriptions, local folders, the tokenizer and the command that fetches."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repro import commands
from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint, require_same_tokenizer, tokenizer
from tiny_checkpoints import NOWHERE, REPO, alone, write_folder, write_snapshot, write_tokenizer

__all__ = ["alone"]  # fixtures, used here under their own names

pytestmark = pytest.mark.usefixtures("alone")

CONF = Path(__file__).resolve().parents[2] / "conf" / "model" / "checkpoint"


# --- the descriptions ---------------------------------------------------------------------------------------


def test_every_description_loads_under_its_own_name():
    paths = sorted(CONF.glob("*.yaml"))
    assert len(paths) >= 44
    described = {path.stem: Checkpoint.from_yaml(path) for path in paths}
    assert all(name == one.name for name, one in described.items())
    for one in described.values():
        assert one.shares_embeddings_with in {None, *described}
        assert one.wheel is None or len(one.wheel.sha256) == 64


# --- a local folder -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["tiny", "org/tiny", "given/there"])
def test_models_are_found_on_the_shelf(tmp_path, monkeypatch, where):
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path / "shelf"))
    folder = write_folder(tmp_path / "shelf" / where)
    named = "given/there" if where.startswith("given") else None
    assert open_checkpoint(replace(NOWHERE, hub=REPO, folder=named)) == folder


def test_a_named_folder_that_is_not_there_is_not_replaced_by_another_place(tmp_path):
    write_snapshot(tmp_path / "hub")
    with pytest.raises(InputError, match=r"folder 'typo' is not there; tried .*typo"):
        open_checkpoint(replace(NOWHERE, folder="typo", hub=REPO))


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = json.dumps({"weight_map": {"w": "b.safetensors"}})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def weights_become(change):
    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{", "utf-8"), "config.json is not valid JSON"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (weights_become(lambda content: content[:-8]), r"corrupt: \d+ bytes, its header asks for \d+"),
        (weights_become(lambda content: content[:12]), r"model.safetensors is corrupt: 12 bytes"),
        (weights_become(lambda content: b""), r"model.safetensors is corrupt: 0 bytes"),
        (weights_become(lambda content: bytes([9, *[0] * 7]) + b"not json!"), "its header does not parse"),
        (lose_a_shard, "lacks b.safetensors"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path, spoil, says):
    folder = write_folder(tmp_path / "mine")
    spoil(folder)
    with pytest.raises(InputError, match=says):
        open_checkpoint(replace(NOWHERE, folder=str(folder)))


def test_a_draft_that_shares_embeddings_needs_no_tokenizer(tmp_path):
    folder = write_folder(tmp_path / "draft")
    (folder / "tokenizer.json").unlink()
    draft = replace(NOWHERE, folder=str(folder), shares_embeddings_with="target")
    assert open_checkpoint(draft) == folder
    with pytest.raises(InputError, match="a draft's is its target's"):
        tokenizer(folder)


# --- the tokenizer ------------------------------------------------------------------------------------------


def test_every_file_may_name_ends(tmp_path):
    folder = write_folder(tmp_path / "a", eos_token_id=7, text_config={"eos_token_id": 9})
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}', encoding="utf-8")
    assert tokenizer(folder).eos_ids == {0, 5, 6, 7, 9}


def test_a_base_model_has_no_chat(tmp_path):
    folder = write_folder(tmp_path / "a")
    write_tokenizer(folder, chat=None)
    with pytest.raises(InputError, match="no chat template"):
        tokenizer(folder).chat([{"role": "user", "content": "hello"}])


def test_a_pair_must_share_its_tokenizer(tmp_path):
    one, two, other = (write_folder(tmp_path / name) for name in "abc")
    write_tokenizer(other, control=["<|end|>", "<|bot|>"])
    target, draft, stranger = map(tokenizer, (one, two, other))
    require_same_tokenizer(target, draft)
    with pytest.raises(InputError, match=r"259 and 258 tokens, and id 1 is '<\|user\|>' .* '<\|bot\|>'"):
        require_same_tokenizer(target, stranger)


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_says_where_each_lies_and_from_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path / "shelf"))
    folder = write_folder(tmp_path / "shelf" / "gpt2")
    assert commands.run("fetch", ["gpt2"]) == 0
    assert capsys.readouterr().out == f"gpt2: {folder}\n  from folder ({folder})\n"


def test_the_command_knows_its_names(capsys):
    assert commands.run("fetch", ["gpt3"]) == 2
    assert "there is no checkpoint 'gpt3'. Did you mean gpt2" in capsys.readouterr().err
    assert commands.run("fetch", ["--list"]) == 0
    assert f"{len(list(CONF.glob('*.yaml')))} checkpoints" in capsys.readouterr().out
