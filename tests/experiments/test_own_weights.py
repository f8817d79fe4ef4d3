"""`weights=own` on each paper's main table, from tiny checkpoints in a hub's cache: transformers' tokens."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from omegaconf import OmegaConf

from invented_rows import INVENTED
from repro.core.overrides import override
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.data.config import read_config
from repro.experiments.plan import planning
from repro.methods.base import Generation
from repro.models.analysis.likelihood import Reader
from repro.models.checkpoints import hub
from repro.scenarios.generation import scenario
from tiny_hub import place, write
from tiny_project import Project

pytestmark = pytest.mark.usefixtures("no_pictures")

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
        folders = (override(name, self.out / name) for name in ("results", "outputs"))
        return [override("data_dir", self.root / "data"), *folders, "wandb.mode=disabled"]


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
    serve = scenario.serve

    def heard(*arguments: Any) -> list[Generation]:
        made = serve(*arguments)
        found.extend(made)
        return made

    monkeypatch.setattr(scenario, "serve", heard)
    return found


Scored = tuple[tuple[int, ...], tuple[int, ...], float]
"""A context, a continuation and its likelihood in nats."""


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[Scored]:
    """What was scored."""
    found: list[Scored] = []
    score = Reader.score

    def heard(reader: Reader, pairs: Any) -> Any:
        made = score(reader, pairs)
        found.extend((*map(tuple, pair), one.nats) for pair, one in zip(pairs, made, strict=True))
        return made

    monkeypatch.setattr(Reader, "score", heard)
    return found


def sweep(*overrides: str) -> list[tuple[str, ...]]:
    """The cells of a sweep."""
    with planning(conf_dir()) as plan:
        return plan.jobs(overrides)


def greedy(folder: Path, generation: Generation) -> list[int]:
    """What transformers answers to the same prompt."""
    request = generation.request
    encodes = hf.AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = hf.AutoModelForSeq2SeqLM if encodes else hf.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([request.prompt])
    made = model.generate(prompt, do_sample=False, max_new_tokens=request.max_tokens, use_cache=False)
    return made[0, 1 if encodes else prompt.shape[1] :].tolist()


def judge(folder: Path, answers: list[Generation], count: int) -> None:
    """So many answers are what transformers answers."""
    assert len(answers) == count
    for generation in answers:
        expected = greedy(folder, generation)
        assert generation.tokens == expected[: len(generation.tokens)]
        assert len(generation.tokens) == len(expected) or generation.tokens[-1] in generation.request.stop


def scored_alike(model: hf.PreTrainedModel, scored: list[Scored], nats: float) -> list[bool]:
    """Whether each continuation was scored as transformers scores it, to so many nats."""
    found = []
    for context, continuation, own in scored:
        with torch.no_grad():
            logps = model(torch.tensor([[*context, *continuation]])).logits[0].log_softmax(-1)
        places = range(len(context) - 1, len(context) + len(continuation) - 1)
        expected = sum(float(logps[at, token]) for at, token in zip(places, continuation, strict=True))
        found.append(abs(own - expected) < nats)
    return found


def loaded(folder: Path) -> hf.PreTrainedModel:
    """The checkpoint as transformers has it."""
    return hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def ran(paper: Paper, *arguments: str) -> list[Any]:
    """The records of a command, all of which are done."""
    made = paper.here(*arguments)
    assert made.returncode == 0, made.stderr + made.stdout
    store = paper.store
    return [record for t in store.tables() for record in store.records(store.members(t))]


def test_every_model_has_a_checkpoint_of_its_own() -> None:
    """No stand-in is left in any model's file under `weights=own`, and no rounding.

    Nobody has published Medusa heads for Qwen1.5: there is no checkpoint.
    """
    for path in sorted(
        {*(conf_dir() / "model").glob("*.yaml")} - {conf_dir() / "model/qwen1_5_1_8b_medusa.yaml"}
    ):
        own = OmegaConf.to_container(OmegaConf.create({**read_mapping(path), "weights": "own"}), resolve=True)
        (checkpoint,) = (part["checkpoint"] for part in own["defaults"] if "checkpoint" in part)
        assert checkpoint.startswith("smollm2") == path.stem.startswith("smollm2"), path.name
        assert (conf_dir() / "model" / "checkpoint" / f"{checkpoint}.yaml").is_file(), path.name
        assert own.get("rounded") is None, path.name


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


MLLM = {
    "qwen1_5_1_8b": "qwen1_5_1_8b_chat",
    "gemma_2b": "gemma_2b_it",
    "phi_2": "phi_2",
    "llama_2_7b": "llama_2_7b_chat",
    "mistral_7b": "mistral_7b_instruct",
}
"""The paper's models with the checkpoints that compute them."""


@pytest.mark.parametrize("model", MLLM)
def test_mllm_npu_table_5(paper: Paper, scored: list[Scored], model: str) -> None:
    write(paper.root / "hub", MLLM[model])
    (record,) = ran(
        paper,
        *("experiment=mllm_npu/table5", "weights=own", f"model@target={model}", "dataset=hellaswag"),
        *("compression=fp16", "prompts=2"),
    )
    assert len(scored) >= 4
    assert all(scored_alike(loaded(place(paper.root / "hub", MLLM[model])).half().float(), scored, 0.03))
    assert (record.provenance.weights, record.labels["weights"]) == ("real", "own")


def test_elastilm_fig_14(paper: Paper, scored: list[Scored]) -> None:
    write(paper.root / "hub", "llama_7b")
    (record,) = ran(
        paper,
        *(
            "experiment=elastilm/fig14",
            "weights=own",
            "service=elastilm",
            "trace.alpha=0",
            "device=xiaomi_14",
        ),
        *("service.decider=random", "service.scorer=random", "prompts=2", "trace.requests=6"),
        "corpus.texts=1",
    )
    alike = scored_alike(loaded(place(paper.root / "hub", "llama_7b")), scored, 1e-3)
    assert 2 <= sum(alike) < len(alike), (
        "the full model's answers are transformers', those of cut levels are not"
    )
    assert record.provenance.config["target"]["checkpoint"]["name"] == "llama_7b"


def test_both_stand_beside_each_other(paper: Paper) -> None:
    """One command has the stand-in's value, that of own weights and the published one."""
    for name in ("qwen3_8b", "smollm2_135m_instruct"):
        write(paper.root / "hub", name)
    records = ran(
        paper,
        *("experiment=lever/table5", "weights=stand_in,own", "dataset=mbpp", "method=flash_ar"),
        *("model@draft=qwen3_0_6b_q4_0", "prompts=2", "max_tokens=4"),
    )
    kinds = [record.labels.get("weights", "stand_in") for record in records]
    assert sorted(kinds) == ["own", "stand_in"]
    (text,) = (text.decode() for name, text in paper.tables().items() if name.endswith(".csv"))
    cells = {(row["id"], row["column"]): row for row in csv.DictReader(io.StringIO(text))}
    beside = [cells["Qwen3-0.6B / flash_ar", key] for key in ("mbpp", "mbpp_own")]
    assert all(float(cell["ours"]) > 0 for cell in beside)
    assert len({cell["cell"] for cell in beside}) == 2
    published = [cells["EAGLE-3 for Qwen3-8B / lever", key] for key in ("mbpp", "mbpp_own")]
    assert [cell["published_low"] for cell in published] == ["1.753", "1.753"]
