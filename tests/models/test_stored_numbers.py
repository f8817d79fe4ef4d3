"""Quantized weights give the logits of what they mean, or are refused before hashing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from repro.core.errors import InputError
from repro.models.checkpoints import digest
from repro.models.checkpoints.checkpoint import open_checkpoint, provenance, tokenizer
from repro.models.checkpoints.dequantizing import PACKAGE_OF_METHOD
from repro.models.checkpoints.validate import stored_notes
from repro.models.forward import encdec
from repro.models.transformer import weights
from tiny_checkpoints import NOWHERE, write_tokenizer
from tiny_families import logits, of_transformers, write

ROWS, COLUMNS = 16, 32  # of a block
Stored = dict[str, torch.Tensor]
"""What lies in the file in a weight's place, by the end of its name."""


def by_block(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """float8 with a scale for each block, and what it means, computed block by block."""
    blocks = [-(-size // block) for size, block in zip(weight.shape, (ROWS, COLUMNS), strict=True)]
    stored, scale, meant = torch.zeros_like(weight), torch.zeros(*blocks), torch.zeros_like(weight)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            part = (slice(i * ROWS, (i + 1) * ROWS), slice(j * COLUMNS, (j + 1) * COLUMNS))
            scale[i, j] = weight[part].abs().max() / 448
            stored[part] = (weight[part] / scale[i, j]).to(torch.float8_e4m3fn).float()
            meant[part] = stored[part] * scale[i, j]
    return {"weight": stored.to(torch.float8_e4m3fn), "weight_scale_inv": scale}, meant


def by_row(weight: torch.Tensor, name: str, divisor: float, flat: bool) -> tuple[Stored, torch.Tensor]:
    """int8 with a scale for each row: bitsandbytes keeps the row's largest value, others a 127th of it."""
    largest = weight.abs().amax(1)
    stored = torch.round(weight / largest[:, None] * 127).to(torch.int8)
    scale = largest * divisor / 127
    return {"weight": stored, name: scale if flat else scale[:, None]}, stored * largest[:, None] / 127


ARGUMENTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "int-quantized"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}


def compressed(activations: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    group = {"weights": ARGUMENTS | arguments, "input_activations": activations, "targets": ["Linear"]}
    return COMPRESSED | {"config_groups": {"group_0": group}, "quantization_status": "compressed"}


KINDS: dict[str, tuple[Callable[[torch.Tensor], tuple[Stored, torch.Tensor]], dict[str, Any]]] = {
    "fp8": (by_block, FP8 | {"weight_block_size": [ROWS, COLUMNS]}),
    "bitsandbytes": (lambda w: by_row(w, "SCB", 127.0, True), INT8),
    "compressed-tensors": (lambda w: by_row(w, "weight_scale", 1.0, False), compressed()),
}
"""By method: how a weight is stored and what it means; the configuration."""


def edit(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries), encoding="utf-8")


def quantized(folder: Path, store: Any, config: dict[str, Any], family: str = "qwen-3") -> Stored:
    """Write a tiny checkpoint whose linears are stored so; returns what its tensors mean."""
    write(family, folder)
    tensors, meant = load_file(folder / "model.safetensors"), {}
    stored: Stored = {}
    for name, tensor in tensors.items():
        if "_proj.weight" in name:
            parts, meant[name] = store(tensor)
            stored |= {name.removesuffix("weight") + end: part.contiguous() for end, part in parts.items()}
        else:
            stored[name] = meant[name] = tensor
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    write_tokenizer(folder)
    edit(folder, quantization_config=config)
    return meant


@pytest.mark.parametrize("method", KINDS)
def test_quantized_weights_give_the_logits_of_what_they_mean(method: str, tmp_path: Path) -> None:
    if PACKAGE_OF_METHOD[method]:
        pytest.importorskip(PACKAGE_OF_METHOD[method])
    store, config = KINDS[method]
    meant = quantized(tmp_path / "stored", store, config)
    write("qwen-3", tmp_path / "meant")
    save_file(meant, tmp_path / "meant" / "model.safetensors", {"format": "pt"})
    checkpoint = replace(NOWHERE, folder=str(tmp_path / "stored"))
    folder = open_checkpoint(checkpoint, tmp_path / "cache")
    expected = of_transformers(tmp_path / "meant")
    assert expected.abs().max() > 1.0
    torch.testing.assert_close(logits(folder), expected, atol=1e-4, rtol=0)
    facts = provenance(folder)
    assert facts["dequantized"] is True
    assert facts["quantized"] == method
    assert facts["detail"] == str(tmp_path / "stored")
    assert stored_notes(folder) == (
        f"weights dequantized from {method}; activations, if it quantizes them too, are not quantized here",
    )
    assert open_checkpoint(checkpoint, tmp_path / "cache") == folder
    tokenizer(folder)


def test_what_transformers_does_not_dequantize_is_refused(tmp_path: Path) -> None:
    def by_tensor(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale": torch.ones(())}, weight

    quantized(tmp_path / "stored", by_tensor, FP8 | {"weight_block_size": None})
    with pytest.raises(InputError, match=rf"{tmp_path}/stored cannot be dequantized: "):
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path / "stored")), tmp_path / "cache")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized by 'gptq'"),
    "mlx": ({"quantization": {"group_size": 64, "bits": 4}}, r"quantized by 'MLX'"),
    "no name": ({"quantization_config": {"bits": 8}}, r"quantized by '\?'"),
    "not a mapping": ({"quantization_config": "int8"}, "must be a mapping"),
    **{
        method: (
            {"quantization_config": KINDS[method][1]},
            f"quantized by '{method}', .* `pip install 'repro.quantized.'` brings it; or save it dequantized",
        )
        for method in KINDS
        if PACKAGE_OF_METHOD[method] and find_spec(PACKAGE_OF_METHOD[method]) is None
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_dequantized_is_refused_by_name_before_hashing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, says = REFUSED[kind]
    write("llama-2", tmp_path)
    write_tokenizer(tmp_path)
    edit(tmp_path, **entries)
    monkeypatch.setattr(digest, "_content", lambda path: pytest.fail(f"{path} was hashed"))
    with pytest.raises(InputError, match=says) as caught:
        open_checkpoint(replace(NOWHERE, folder=str(tmp_path)))
    assert str(tmp_path) in str(caught.value)


TYPES = (torch.int8, torch.bool, torch.float64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_tensor_of_another_type_is_refused_where_no_key_says_so(dtype: torch.dtype, tmp_path: Path) -> None:
    write("qwen-2.5", tmp_path)
    write_tokenizer(tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.1.self_attn.q_proj.bias"
    save_file(tensors | {name: tensors[name].to(dtype)}, tmp_path / "model.safetensors")
    for opens in (lambda: open_checkpoint(replace(NOWHERE, folder=str(tmp_path))), lambda: logits(tmp_path)):
        with pytest.raises(
            InputError, match=rf"{tmp_path}.*stores {name} as \w+; a weight is F32, F16, BF16"
        ):
            opens()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_plain_numbers_of_fewer_bits_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    tensors = {name: t.to(dtype) for name, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    torch.testing.assert_close(logits(tmp_path), of_transformers(tmp_path), atol=1e-4, rtol=0)
    assert stored_notes(tmp_path) == ()


def test_an_encoder_decoder_has_plain_numbers() -> None:
    with pytest.raises(InputError, match="t5 in fp8 is not read"):
        encdec.config_of({"is_encoder_decoder": True, "model_type": "t5", "quantization_config": FP8})


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tables_of_zeros_are_no_weights(name: str, tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {name: torch.zeros_like(tensors[name])}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=rf"{tmp_path} are all zero"):
        weights.load(tmp_path)
