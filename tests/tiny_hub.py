"""A hub's cache with tiny checkpoints under the names of the papers' own, written by `transformers` or by the
public layouts of heads.

Every family and head that a paper's main table needs is here: `OWN` has the family of each checkpoint of
`conf/model/checkpoint`, whose repository names the folder in the cache.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers as hf

import tiny_encdec
from repro.core.paths import conf_dir
from repro.models.checkpoints.checkpoint import Checkpoint
from repro.models.transformer import weights
from tiny_checkpoints import CONTROL, write_tokenizer
from tiny_eagle import raw_config, tensors_of, write_head
from tiny_families import FAMILIES, noised
from tiny_medusa import tensors_of as medusa_tensors
from tiny_medusa import write_heads

VOCAB = len(CONTROL) + 256
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTEXT = 2048
NOISE = 0.02
"""Of a draft's weights, which are else its target's, in standard deviations of each parameter."""

HEADS = 5

OWN: dict[str, tuple[str, int]] = {
    "mt5_large": ("mt5", 0),
    "mt5_small": ("mt5", 1),
    "t5_large": ("t5", 0),
    "t5_small": ("t5", 1),
    "bart_large": ("bart", 0),
    "bart_base": ("bart", 1),
    "gpt2_large": ("gpt-2", 0),
    "gpt2": ("gpt-2", 1),
    "vicuna_13b": ("vicuna", 0),
    "vicuna_7b": ("vicuna", 1),
    "llama_2_13b_chat": ("llama-2", 0),
    "llama_2_7b_chat": ("llama-2", 1),
    "vicuna_7b_v1_3": ("llama-1", 0),
    "vicuna_7b_medusa": ("medusa", 0),
    "llama_7b": ("llama-1", 0),
    "orca_mini_3b": ("llama-1", 0),
    "llama3_8b": ("llama-3.1", 0),
    "opt_125m": ("opt", 0),
    "qwen3_8b": ("qwen-3", 0),
    "qwen3_0_6b": ("qwen-3", 1),
    "smollm2_135m_instruct": ("llama-3.1", 0),
    "eagle3_qwen3_8b": ("eagle3", 0),
    "llama_3_1_8b_instruct": ("llama-3.1", 0),
    "eagle3_llama_3_1_8b": ("eagle3 of EAGLE", 0),
    "qwen1_5_1_8b_chat": ("qwen-1.5", 0),
    "qwen2_5_coder_1_5b_instruct": ("qwen-2.5", 0),
    "qwen2_5_coder_0_5b_instruct": ("qwen-2.5", 1),
    "gemma_2b_it": ("gemma-1", 0),
    "phi_2": ("phi-2", 0),
    "mistral_7b_instruct": ("mistral", 0),
}
"""Family and seed of each checkpoint; of a family another seed is a draft of the first."""


def described(name: str) -> Checkpoint:
    """The checkpoint's file in conf."""
    return Checkpoint.from_yaml(conf_dir() / "model" / "checkpoint" / f"{name}.yaml")


def place(hub: Path, name: str) -> Path:
    """The folder of a checkpoint's snapshot in a hub's cache."""
    repo = described(name).hub
    assert repo is not None
    return hub / f"models--{repo.repo.replace('/', '--')}" / "snapshots" / COMMIT


def write(hub: Path, name: str) -> Path:
    """Write a checkpoint into a hub's cache, and before it the target of a head. Returns its folder."""
    folder, (family, seed) = place(hub, name), OWN[name]
    if folder.exists():
        return folder
    scratch = Path(mkdtemp(dir=hub))
    if family == "medusa" or family.startswith("eagle3"):
        target = described(name).shares_embeddings_with
        assert target is not None
        _write_head(family, scratch, write(hub, target))
    elif family in tiny_encdec.FAMILIES:
        tiny_encdec.write(family, scratch, seed)
    else:
        _decoder(family, seed).save_pretrained(scratch)
        write_tokenizer(scratch)
    folder.parent.mkdir(parents=True)
    shutil.move(scratch, folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    return folder


def _decoder(family: str, seed: int) -> hf.PreTrainedModel:
    """A random decoder that reads bytes; another `seed` is a little off the first."""
    config = FAMILIES[family]()
    config.vocab_size, config.eos_token_id, config.bos_token_id = VOCAB, 0, None
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = CONTEXT
    model = noised(config, 0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters() if seed else ():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * NOISE)
    return model


def _write_head(family: str, folder: Path, target: Path) -> None:
    decoder = weights.load(target)
    if family == "medusa":  # as FasterDecoding's: pickled, and the target's final norm is not in it
        write_heads(folder, medusa_tensors(decoder.config.hidden, VOCAB, heads=HEADS), pickled=True)
        return
    # As AngelSlim's, or as EAGLE's own, which only their vocabulary tells from a decoder.
    named = {"eagle3": "Eagle3LlamaForCausalLM", "eagle3 of EAGLE": "LlamaForCausalLM"}[family]
    raw = raw_config(decoder, architectures=[named])
    write_head(folder, raw, tensors_of(raw))
