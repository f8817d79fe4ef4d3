"""`weights=own` on each paper's main table, on tiny checkpoints in a hub's cache: transformers' own tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from invented_rows import INVENTED
from repro.data.config import read_config
from repro.methods.base import Generation
from repro.models.checkpoints import hub
from repro.scenarios.generation import run
from tiny_hub import place, write
from tiny_project import Project

ROWS = 6
EDGELLM = [
    ("mt5_iwslt17", "mt5_large", "mt5_small"),
    ("t5_squad", "t5_large", "t5_small"),
    ("bart_wmt14", "bart_large", "bart_base"),
    ("gpt2_wikitext", "gpt2_large", "gpt2"),
    ("vicuna_parrot", "vicuna_13b", "vicuna_7b"),
    ("llama2_squad", "llama_2_13b_chat", "llama_2_7b_chat"),
]
"""Setups of Table IV, one of each family, with the checkpoints that `weights=own` chooses."""


@dataclass
class Paper(Project):
    """A command line with nothing but where things lie."""

    @property
    def overrides(self) -> list[str]:
        """No model is named: the experiment and `weights` choose them."""
        folders = (f"{name}={self.out}/{name}" for name in ("results", "outputs"))
        return [f"data_dir={self.root}/data", *folders, "wandb.mode=disabled"]


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """No weights but those of a hub's cache, and a few invented rows of each dataset."""
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    data = tmp_path / "data"
    data.mkdir()
    for name, invented in INVENTED.items():
        line = json.dumps(invented.row) + "\n"
        (data / Path(read_config(name).file).name).write_text(ROWS * line, encoding="utf-8")
    return Paper(tmp_path, tmp_path)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Generation]:
    """The answers of the cells that ran."""
    found: list[Generation] = []
    serve = run.serve

    def heard(*arguments: Any) -> list[Generation]:
        made = serve(*arguments)
        found.extend(made)
        return made

    monkeypatch.setattr(run, "serve", heard)
    return found


def greedy(folder: Path, generation: Generation) -> list[int]:
    """What transformers answers to the same prompt."""
    request = generation.request
    encodes = hf.AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = hf.AutoModelForSeq2SeqLM if encodes else hf.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([request.prompt])
    made = model.generate(prompt, do_sample=False, max_new_tokens=request.max_tokens, num_beams=1)
    return made[0, 1 if encodes else prompt.shape[1] :].tolist()


def judge(folder: Path, answers: list[Generation], count: int) -> None:
    """So many answers are what transformers answers."""
    assert len(answers) == count
    for generation in answers:
        expected = greedy(folder, generation)
        assert generation.tokens == expected[: len(generation.tokens)]
        assert len(generation.tokens) == len(expected) or generation.tokens[-1] in generation.request.stop


def ran(paper: Paper, *arguments: str) -> list[Any]:
    """The records of a command, all of which are done."""
    made = paper.here(*arguments)
    assert made.returncode == 0, made.stderr + made.stdout
    store = paper.store
    return [record for t in store.tables() for record in store.records(store.members(t))]


@pytest.mark.parametrize("draft", ["eagle3_qwen3_8b", "qwen3_0_6b_q4_0"])
def test_lever_table_5(paper: Paper, answers: list[Generation], draft: str) -> None:
    for name in ("qwen3_8b", "qwen3_0_6b", "eagle3_qwen3_8b"):
        write(paper.root / "hub", name)
    records = ran(
        paper,
        *("experiment=lever/table5", "weights=own", "dataset=mbpp", f"model@draft={draft}"),
        *("prompts=2", "max_tokens=12"),
    )
    assert sorted(record.labels["method"] for record in records) == ["chain_sd", "edgellm", "lever"]
    judge(place(paper.root / "hub", "qwen3_8b"), answers, 6)
    assert {record.provenance.config["target"]["checkpoint"]["name"] for record in records} == {"qwen3_8b"}
    assert {record.labels["weights"] for record in records} == {"own"}


@pytest.mark.parametrize(("setup", "target", "draft"), EDGELLM)
def test_edgellm_table_4(
    paper: Paper, answers: list[Generation], setup: str, target: str, draft: str
) -> None:
    write(paper.root / "hub", target)
    write(paper.root / "hub", draft)
    made = ("experiment=edgellm/table4", "weights=own", f"setup={setup}", "prompts=2", "max_tokens=12")
    (record,) = ran(paper, *made, "method=edgellm")
    judge(place(paper.root / "hub", target), answers, 2)
    assert record.labels["agreement"] == "native"
    assert record.values["rouge_l"] == 100
    assert record.provenance.config["draft"]["rounded"] is None


def test_ghidorah_table_1(paper: Paper, answers: list[Generation]) -> None:
    write(paper.root / "hub", "vicuna_7b_medusa")
    (record,) = ran(
        paper,
        *("experiment=ghidorah/table1_vicuna", "weights=own", "setup=ghidorah_gsm8k", "method.width=16"),
        *("prompts=2", "max_tokens=12"),
    )
    judge(place(paper.root / "hub", "vicuna_7b_v1_3"), answers, 2)
    assert record.labels["agreement"] == "native"
    assert all(r.rows <= 16 for answer in answers for r in answer.rounds)


def test_mllm_npu_table_5(paper: Paper) -> None:
    write(paper.root / "hub", "qwen1_5_1_8b_chat")
    (record,) = ran(
        paper,
        *("experiment=mllm_npu/table5", "weights=own", "model@target=qwen1_5_1_8b", "dataset=hellaswag"),
        *("compression=fp16", "prompts=2"),
    )
    assert record.provenance.weights == "real"


def test_elastilm_fig_14(paper: Paper) -> None:
    write(paper.root / "hub", "llama_7b")
    (record,) = ran(
        paper,
        *("experiment=elastilm/fig14", "weights=own", "service=elastilm", "trace.alpha=0", "device=xiaomi_14"),
        *("service.decider=random", "service.scorer=none", "prompts=2", "trace.requests=6", "corpus.texts=2"),
    )
    assert record.values["full_accuracy"] is not None


def test_both_stand_beside_each_other(paper: Paper) -> None:
    """One command has a row's stand-in, its own weights and the published value."""
    for name in ("qwen3_8b", "qwen3_0_6b", "eagle3_qwen3_8b", "smollm2_135m_instruct"):
        write(paper.root / "hub", name)
    records = ran(
        paper,
        *("experiment=lever/table5", "weights=stand_in,own", "dataset=mbpp", "method=chain_sd"),
        *("model@draft=qwen3_0_6b_q4_0", "draft.checkpoint.folder=null", "prompts=2", "max_tokens=4"),
    )
    assert len(records) == 2
