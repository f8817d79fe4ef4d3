"""Every tensor of a file is read or refused by name, and every tensor of the model is in the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from repro.core.errors import InputError
from repro.core.overrides import override
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.forward import encdec
from repro.models.transformer import weights
from repro.records.results import Results
from tiny_checkpoints import NOWHERE, alone, write_tokenizer
from tiny_encdec import write as write_encdec
from tiny_families import FAMILIES, SHAPE, noised, write
from tiny_gguf import VOCAB, write_model
from tiny_project import Project

__all__ = ["alone"]

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
QUERY = "model.layers.1.self_attn.q_proj.weight"


def answered(project: Project, place: Path) -> tuple[int, str, list[str]]:
    """What `python -m repro` says of a target: exit status, messages, and the tokens of its answers."""
    out = project.out / place.parent.name
    made = project.apart(out).here("method=std", override("target.checkpoint.folder", place))
    store = Results(out / "results")
    tokens = [answer["tokens"] for record in store.all() for answer in store.answers(record.key)]
    return made.returncode, " ".join(made.stderr.split()), tokens


def change(edit: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    """A change of the tensors in a folder's file."""

    def made(folder: Path) -> None:
        tensors = load_file(folder / FILE)
        edit(tensors)
        save_file(tensors, folder / FILE)

    return made


def with_tensor(name: str, *shape: int) -> Callable[[Path], None]:
    return change(lambda tensors: tensors.update({name: torch.ones(*shape)}))


def sharded(lost: str = "", unnamed: str = "") -> Callable[[Path], None]:
    """Two shards and an index; one shard is lost, or a tensor is not in the index."""

    def made(folder: Path) -> None:
        tensors = load_file(folder / FILE)
        (folder / FILE).unlink()
        names = sorted(tensors)
        halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, half in halves.items():
            save_file({name: tensors[name] for name in half}, folder / file)
        mapped = {name: file for file, half in halves.items() for name in half if name != unnamed}
        (folder / INDEX).write_text(json.dumps({"weight_map": mapped}), encoding="utf-8")
        if lost:
            (folder / lost).unlink()

    return made


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a lost tensor": (change(lambda t: t.pop(QUERY)), f"tensor {QUERY} is missing from"),
    "a lost layer": (
        change(lambda t: [t.pop(name) for name in list(t) if ".layers.1." in name]),
        "(and 8 more) is missing",
    ),
    "another shape": (
        change(lambda t: t.update({QUERY: t[QUERY][:, :-1].contiguous()})),
        f"tensor {QUERY} in",
    ),
    "a bias": (
        with_tensor(QUERY.replace("weight", "bias"), 64),
        "q_proj.bias, which is no part of the model",
    ),
    "a scale": (with_tensor(f"{QUERY}_scale", 1), f"has tensor {QUERY}_scale"),
    "another prefix": (with_tensor("embed_tokens.weight", 259, 64), "has tensor embed_tokens.weight"),
    "a lost shard": (sharded(lost="b.safetensors"), "it lacks b.safetensors, which"),
    "a tensor beyond the index": (sharded(unnamed=QUERY), f"has tensor {QUERY}, which {INDEX} does not name"),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text("{}", encoding="utf-8"),
        "adapter_config.json is of an adapter",
    ),
    "an adapter's weights": (
        lambda folder: save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors"),
        "adapter_model.safetensors is of an adapter",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_refuses_a_folder_with_a_part_too_few_or_too_many(
    name: str, project: Project, tmp_path: Path
) -> None:
    spoil, message = REFUSED[name]
    shutil.copytree(project.root / "target", tmp_path / "target")
    spoil(tmp_path / "target")
    code, said, tokens = answered(project, tmp_path / "target")
    assert (code, tokens) == (2, [])
    assert message in said


def test_what_says_nothing_changes_nothing(project: Project, tmp_path: Path) -> None:
    for place in ("plain", "more"):
        shutil.copytree(project.root / "target", tmp_path / place / "target")
    with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", 16)(tmp_path / "more" / "target")
    sharded()(tmp_path / "more" / "target")
    plain = answered(project, tmp_path / "plain" / "target")
    assert plain[0] == 0
    assert plain[2]
    assert answered(project, tmp_path / "more" / "target")[::2] == plain[::2]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_of_each_family_are_a_table(family: str, tmp_path: Path) -> None:
    """Each tensor of a file that transformers wrote is needed, whatever the family."""
    write(family, tmp_path)
    tensors = load_file(tmp_path / FILE)
    for name in sorted(tensors):
        if name != "lm_head.weight":
            save_file({other: tensors[other] for other in tensors if other != name}, tmp_path / FILE)
            with pytest.raises(InputError, match=r"missing from|holds no tensor"):
                weights.decoder_config(tmp_path)


def test_an_encoder_decoder_has_all_of_its_tensors(tmp_path: Path) -> None:
    write_encdec("bart", tmp_path)
    config = encdec.config_of(weights.read_config(tmp_path))
    assert config is not None
    whole = load_file(tmp_path / FILE)
    name = "model.decoder.layers.0.encoder_attn.k_proj.weight"
    for tensors, message in (
        ({other: whole[other] for other in whole if other != name}, f"lacks 1 tensors of its model: {name}"),
        (whole | {"model.decoder.extra.weight": torch.ones(1)}, "unread, 1 tensors .*decoder.extra.weight"),
    ):
        save_file(tensors, tmp_path / FILE, {"format": "pt"})
        with pytest.raises(InputError, match=message):
            encdec.load(tmp_path, config, "float32")


# --- GGUF ---------------------------------------------------------------------------------------------------


def gguf_model(path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> Path:
    """A Llama as one file or several, with a tensor too few or too many."""
    tensors, fields = {}, [lambda w: w.add_rope_freq_base(10_000.0)]
    add = gguf.GGUFWriter.add_tensor
    if how == "parts":
        made = gguf.GGUFWriter.__init__
        monkeypatch.setattr(
            gguf.GGUFWriter, "__init__", lambda w, *of, **more: made(w, *of, **more, split_max_tensors=9)
        )
    elif how == "a lost layer":
        monkeypatch.setattr(
            gguf.GGUFWriter, "add_tensor", lambda w, name, *of: "blk.1." in name or add(w, name, *of)
        )
    elif how == "an adapter":
        fields.append(lambda w: w.add_type("adapter"))
    elif how != "whole":
        tensors[how] = np.ones(64, np.float32)
    c = hf.LlamaConfig(**SHAPE | {"vocab_size": VOCAB, "eos_token_id": 0}, tie_word_embeddings=True)
    return write_model(path, noised(c, 0), "llama", fields, tensors)


GGUFS = {
    "parts": "is part 1 of",
    "a lost layer": "lacks blk.1.attn_q.weight (and 8 more tensors), which its model needs",
    "blk.0.attn_q.bias": "has blk.0.attn_q.bias, which is not read here for llama",
    "blk.9.attn_norm.weight": "has blk.9.attn_norm.weight",
    "output.weight": "has another shape for output.weight",
    "an adapter": "holds no model, but general.type='adapter'",
}


@pytest.mark.parametrize("name", GGUFS)
def test_a_command_refuses_a_gguf_file_with_a_part_too_few_or_too_many(
    name: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_model(tmp_path / "tiny.gguf", monkeypatch, name)
    place = sorted(tmp_path.glob("*.gguf"))[0]
    code, said, tokens = answered(project, place)
    assert (code, tokens) == (2, [])
    assert GGUFS[name] in said
    if name == "parts":
        assert "merge parts first" in answered(project, tmp_path)[1]


def test_a_whole_gguf_file_answers(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, tokens = answered(project, gguf_model(tmp_path / "tiny.gguf", monkeypatch, "whole"))
    assert (code, len(tokens)) == (0, 2), said


@pytest.mark.usefixtures("alone")
def test_a_draft_may_not_bring_an_embedding_that_is_not_read(tmp_path: Path) -> None:
    write("llama-2", tmp_path)
    write_tokenizer(tmp_path)
    raw = weights.read_config(tmp_path) | {"shares_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(InputError, match=r"has tensor lm_head.weight \(and 1 more\), which is no part"):
        weights.decoder_config(open_checkpoint(replace(NOWHERE, folder=str(tmp_path))))
