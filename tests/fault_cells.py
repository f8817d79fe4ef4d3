"""Cells of every registered method on a tiny model, for faults to be put into what computes or is stored."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from repro.core.overrides import override
from repro.methods.lever.exit_predictor import PredictorConfig
from repro.models.checkpoints.digest import digest
from repro.models.transformer import weights
from tiny_checkpoints import write_tokenizer
from tiny_eagle import raw_config, tensors_of, write_head
from tiny_outcomes import BLANK, MEDUSA, OWN, PHONE, SHAPE, SPECIAL, project_in
from tiny_project import Project

TOKENS = 12
RANK = 2
BILLED = {"int8": "target.precision=int8", "fp16": "target.precision=fp16"}


def write_models(root: Path) -> Project:
    """The models of `tiny_outcomes`, an EAGLE-3 head, and a target with an early-exit predictor."""
    project = project_in(root)
    target = weights.load(root / "target")
    raw = raw_config(target)
    write_head(root / "eagle", raw, tensors_of(raw))
    tied = {
        n: t for n, t in load_file(root / "target" / "model.safetensors").items() if n != "lm_head.weight"
    }
    hf.LlamaConfig(**SHAPE, tie_word_embeddings=True).save_pretrained(root / "tied")
    save_file(tied, root / "tied" / "model.safetensors")
    write_tokenizer(root / "tied")
    chance = torch.Generator().manual_seed(3)
    width, vocab = SHAPE["hidden_size"], SHAPE["vocab_size"]
    about = {"name": "tied", "digest": digest(root / "tied")}
    config = PredictorConfig(
        about, target.config.layers, 2, width, vocab, RANK, {"kd": 1.0, "candidates": 1.0}
    )
    (root / "predictor").mkdir()
    (root / "predictor" / "config.json").write_text(json.dumps(asdict(config)), encoding="utf-8")
    update = {"inner": (RANK, width), "outer": (width, RANK)}
    save_file(
        {name: torch.randn(shape, generator=chance) / width**0.5 for name, shape in update.items()},
        root / "predictor" / "update.safetensors",
    )
    return project


DRAFTS = {"bld": ("method.fallback=0", "method.most=3"), "chain_sd": ("method.length=10",)}
"""Settings with which a round has drafts, and a wrong one: tiny drafts are unsure, and often right."""


def overrides(name: str) -> tuple[str, ...]:
    """What a method needs beside the tiny target and draft; engines compute with the target's weights."""
    own = SPECIAL.get(name, ()) + DRAFTS.get(name, ())
    if BLANK[0] not in own:
        return own
    return next((precision,) for key, precision in BILLED.items() if precision in own)


def variants(root: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Further cells: the method of each and its overrides."""
    tied = (
        override("target.checkpoint.folder", root / "tied"),
        override("target.checkpoint.predictor", root / "predictor"),
    )
    int8 = ("target.precision=int8", "draft.precision=int8")
    eagle = (
        "model@draft=smollm2_135m_eagle3",
        "draft.shape=null",
        "draft.checkpoint.shares_embeddings_with=smollm2_135m_instruct",
        override("draft.checkpoint.folder", root / "eagle"),
    )
    return {
        "lever pruned": ("lever", (*tied, *int8, "method.threshold=0.2")),
        "lever with opt_tree": ("lever", (*int8, "method.pruning=off", "method.construction=opt_tree")),
        "chain_sd with an EAGLE head": ("chain_sd", eagle),
    }


def cell(project: Project, name: str) -> dict[str, Any]:
    """The configuration of a method's cell on an emulated phone, or of a variant's."""
    method, own = variants(project.root).get(name, (name, overrides(name)))
    heads = "heads" if MEDUSA[0] in own else "draft"
    folder = override("draft.checkpoint.folder", f"{project.root}/{heads}")
    common = (f"method={method}", f"max_tokens={TOKENS}", "prompts=1", *OWN, folder)
    return project.config(*common, *own) | {"device": json.loads(PHONE.read_text(encoding="utf-8"))}
