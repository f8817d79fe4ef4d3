"""No code of a checkpoint or a configuration file runs: each of these would leave a file behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.core.reading import read_mapping
from repro.models.checkpoints.checkpoint import open_checkpoint, tokenizer
from repro.models.checkpoints.safetensors_io import unpickle_tensors
from tiny_checkpoints import NOWHERE, alone, write_folder

__all__ = ["alone"]  # a fixture, used here under its own name

pytestmark = pytest.mark.usefixtures("alone")


class Harm:
    """What a pickle calls when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file that is there once some code has run."""
    return tmp_path / "it ran"


def test_the_pickle_of_this_test_does_harm(trace: Path, tmp_path: Path) -> None:
    torch.save({"a": Harm(trace)}, tmp_path / "harm.pt")
    torch.load(tmp_path / "harm.pt", weights_only=False)
    assert trace.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])
def test_pickled_weights_are_refused_by_name(trace: Path, tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "checkpoint")
    (folder / "model.safetensors").unlink()
    torch.save({"a": Harm(trace)}, folder / name)
    with pytest.raises(InputError, match=f"only pickled weights \\({name}\\), which are never loaded"):
        open_checkpoint(replace(NOWHERE, folder=str(folder)))
    assert not trace.exists()


def test_medusas_pickle_may_hold_tensors_only(trace: Path, tmp_path: Path) -> None:
    torch.save({"a": Harm(trace)}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(InputError, match="holds more than tensors"):
        unpickle_tensors(tmp_path / "medusa_lm_head.pt")
    assert not trace.exists()


def test_a_tokenizers_own_code_is_refused(trace: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "checkpoint", auto_map={"AutoConfig": "mine.Config"}, model_type="mine")
    (folder / "mine.py").write_text(
        f"open({str(trace)!r}, 'w')\nclass Config: pass\nclass Words: pass\n", encoding="utf-8"
    )
    facts = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["mine.Words", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"the tokenizer in .* cannot be read: ") as caught:
        tokenizer(open_checkpoint(replace(NOWHERE, folder=str(folder))))
    assert "trust_remote_code" not in str(caught.value)
    assert not trace.exists()


def test_an_index_names_files_of_its_folder_only(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "checkpoint")
    index = {"weight_map": {"weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    with pytest.raises(InputError, match=r"names '../elsewhere.safetensors', which is not in its folder"):
        open_checkpoint(replace(NOWHERE, folder=str(folder)))


def test_a_yaml_file_makes_no_objects(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(f"name: !!python/object/apply:os.mknod [{trace}]\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"device\.yaml is not YAML: could not determine a constructor"):
        read_mapping(path)
    assert not trace.exists()
