"""Pairs of models at their ends: the context's last position, padded vocabularies, room for a long draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf

from repro.core.errors import InputError
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_checkpoints import CONTROL, write_tokenizer
from tiny_families import noised
from tiny_project import Project

TOKENS = len(CONTROL) + 256
ANSWER = 12
PROMPT = 15
SPECULATIVE = ("chain_sd", "edgellm", "specinfer", "opt_tree", "bld", "nav")


def pair(project: Project, folder: Path, target: hf.PreTrainedModel, draft: hf.PreTrainedModel) -> Project:
    """The project with models of a test's own."""
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        write_tokenizer(folder / name)
    (folder / "data").symlink_to(project.root / "data")
    sizes = (f"prompt_tokens={PROMPT}", f"max_tokens={ANSWER}")
    return Project(folder, folder, ("experiment=quickstart", "prompts=1", *sizes))


def gpt2(seed: int) -> hf.PreTrainedModel:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": PROMPT + ANSWER}
    return noised(hf.GPT2Config(vocab_size=TOKENS, **sizes, eos_token_id=0), seed)


def opt(seed: int) -> hf.PreTrainedModel:
    sizes = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    positions = {"max_position_embeddings": PROMPT + ANSWER, "word_embed_proj_dim": 32}
    return noised(hf.OPTConfig(vocab_size=TOKENS, **sizes, **positions, eos_token_id=0), seed)


def llama(vocab: int, seed: int) -> hf.PreTrainedModel:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return noised(hf.LlamaConfig(vocab_size=vocab, **sizes, eos_token_id=0), seed)


@torch.inference_mode()
def greedy(project: Project, model: hf.PreTrainedModel, tokens: int | None = None) -> list[int]:
    """transformers' greedy answer, of ids below `tokens`."""
    (request,) = GenerationScenario(project.config("method=std")).requests
    text = list(request.prompt)
    for _ in range(ANSWER):
        text.append(int(model(torch.tensor([text])).logits[0, -1, :tokens].argmax()))
        if text[-1] in request.stop:
            break
    return text[PROMPT:]


# The context's last position


@pytest.mark.parametrize("method", ["std", *SPECULATIVE])
@pytest.mark.parametrize("build", [gpt2, opt])
def test_prompt_and_answer_may_fill_learned_positions(
    project: Project, tmp_path: Path, build: Callable[[int], hf.PreTrainedModel], method: str
) -> None:
    """What looks ahead of the last position changes no answer: all are transformers' own."""
    target = build(0)
    here = pair(project, tmp_path, target, build(1))
    record = here.record(f"method={method}")
    assert record.status == "done"
    (line,) = here.store.answers(record.key)
    answer = [int(token) for token in str(line["target_tokens"]).split()]
    assert answer == greedy(here, target)
    if method != "bld":  # which is lossy
        assert line["tokens"] == line["target_tokens"]


def test_one_position_too_few_is_refused(project: Project, tmp_path: Path) -> None:
    here = pair(project, tmp_path, gpt2(0), gpt2(1))
    cell = GenerationScenario(here.config("method=chain_sd", f"max_tokens={ANSWER + 1}"))
    with pytest.raises(InputError, match=f"{PROMPT + ANSWER + 1} tokens of prompt and answer do not fit"):
        cell.check()


# Padded vocabularies


@pytest.mark.parametrize(("target", "draft"), [(TOKENS + 5, TOKENS + 40), (TOKENS + 40, TOKENS)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["chain_sd", "specinfer", "edgellm"])
def test_vocabularies_may_be_padded_differently(
    project: Project, tmp_path: Path, method: str, temperature: float, target: int, draft: int
) -> None:
    model = llama(target, 0)
    here = pair(project, tmp_path, model, llama(draft, 1))
    record = here.record(f"method={method}", f"sampling.temperature={temperature}")
    (line,) = here.store.answers(record.key)
    answer = [int(token) for token in str(line["tokens"]).split()]
    assert max(answer) < TOKENS
    if not temperature:
        assert answer == greedy(here, model, TOKENS)


# Room for a draft


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("chain_sd", ("method.length=200",)),
        ("sp", ("method.length=100",)),
        ("edgellm", ("method.limit=150", "method.alpha=1e-9", "method.ahead=20")),
        ("specinfer", ("method.expansion=[4,4,4]",)),
        ("nav", ("method.batch=12",)),
    ],
)
def test_caches_have_room_for_the_longest_draft(
    project: Project, monkeypatch: pytest.MonkeyPatch, method: str, settings: tuple[str, ...]
) -> None:
    """What a session holds after a round is never more than what was reserved, and here more than before."""
    held: dict[str, int] = {}
    keep = Session.keep

    def noted(self: Session, text: Prefix) -> None:
        held[self.name] = max(held.get(self.name, 0), self._lineage.length)
        keep(self, text)

    monkeypatch.setattr(Session, "keep", noted)
    asked = (
        "experiment=quickstart",
        f"method={method}",
        f"max_tokens={ANSWER}",
        "prompts=1",
        "memo=false",
        *settings,
    )
    cell = GenerationScenario(project.config(*asked))
    cell.check()
    cell.find(lambda what, done, total: None)
    longest = max(len(request.prompt) for request in cell.requests)
    assert max(held.values()) > longest + ANSWER + 64
    assert {role: cell.tokens(role) >= held[role] for role in held} == dict.fromkeys(held, True)
