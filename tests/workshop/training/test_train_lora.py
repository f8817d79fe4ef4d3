"""The training of adapters: texts side by side, only answers count, the loss falls, weights stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from repro.core.errors import InputError
from repro.data.prompts import Prompt
from repro.models.elastic import lora
from repro.models.elastic.differentiable import DifferentiableDecoder
from repro.models.elastic.submodels import reordered, submodel
from repro.models.transformer.cache import KVCache
from tiny_dense import dense
from tiny_elastic import order_of, uneven
from workshop.training.texts.answers import Answer
from workshop.training.trainers.recovery import (
    NOTHING,
    Adapters,
    RecoveryTrainer,
    answered,
    continued,
    packed_loss,
    passes,
)
from workshop.training.trainers.training import Schedule

FAMILIES = ["llama-2", "qwen-2.5", "gemma-2", "opt"]


def texts(count: int = 6, seed: int = 0) -> list[Answer]:
    """Random questions; each answer repeats its last token, which can be learned."""
    chance = torch.Generator().manual_seed(seed)
    asked = [torch.randint(1, 131, (3 + i % 4,), generator=chance) for i in range(count)]
    return [Answer(one, one[-1:].repeat(2 + i % 3), NOTHING, NOTHING) for i, one in enumerate(asked)]


def trainer(where: Path, steps: int = 60, rate: float = 2e-2) -> RecoveryTrainer:
    made = dense("llama-2")
    order, kept = order_of(made), uneven(made)
    sub = submodel(reordered(made, order), kept)
    adapters = Adapters(sub, kept, lora.MATRICES, 4, 0)
    schedule = Schedule(steps=steps, tokens=16, rate=rate, warmup=1, decay=1.0, weight_decay=0.0)
    return RecoveryTrainer(
        adapters, lora.attached(sub, adapters.lora(kept, order)), schedule, 16, where / "state.pt", "cpu"
    )


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_texts_side_by_side_are_texts_one_by_one(family: str) -> None:
    made, wanted = dense(family), 0.0
    for one in texts():
        tokens = torch.cat((one.prompt, one.tokens))
        logits = made.forward(tokens, torch.arange(len(tokens)), None, KVCache(made.config, 4))
        start = len(one.prompt)
        wanted += float(F.cross_entropy(logits[start - 1 : -1], one.tokens, reduction="sum"))
    found, _ = packed_loss(DifferentiableDecoder(made.config, made.layers, made.ends), texts())
    assert float(found) == pytest.approx(wanted, rel=1e-4)


def test_adapters_begin_as_nothing_and_the_loss_falls(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with torch.no_grad():
        bare = lora.detached(made.decoder)
        before = float(packed_loss(bare, texts())[0]) / sum(len(one.tokens) for one in texts())
    assert made.heldout_loss(texts()) == pytest.approx(before)
    weights = [
        t.clone() for layer in bare.layers if layer for p in layer.linears for t in p.tensors().values()
    ]
    made.run(texts, 1e9, 30, dict)
    assert made.heldout_loss(texts()) < 0.5 * before
    after = [t for layer in bare.layers if layer for p in layer.linears for t in p.tensors().values()]
    assert all(torch.equal(a, b) for a, b in zip(weights, after, strict=True)), "only adapters are trained"


def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    trainer(tmp_path, steps=20).run(texts, 1e9, 10, dict)
    again = trainer(tmp_path, steps=20)
    assert again.step == 20
    assert [point["step"] for point in again.curve] == [10, 20]


def test_passes_of_a_batch_hold_so_many_tokens() -> None:
    given = texts()
    cut = list(passes(given, 16))
    assert [one for some in cut for one in some] == given
    assert all(sum(len(a.prompt) + len(a.tokens) for a in some) <= 16 for some in cut)
    assert [len(some) for some in passes(given, 1)] == [1] * len(given)


def test_answers_end_and_are_cut() -> None:
    asked = [Prompt(f"x/{n}", tuple(range(n)), "", "") for n in (3, 5, 9)]
    found = answered(asked, [[7, 8], [7, 8, 9], [7]], end=2, longest=6)
    assert [one.tokens.tolist() for one in found] == [[7, 8, 2], [7]]
    with pytest.raises(InputError, match="0 of 1 rows"):
        answered(asked[2:], [[7]], 2, 6)


def test_texts_are_read_one_behind_the_other() -> None:
    found = continued([[5, 6, 7], [8], [9, 9, 9, 9]], end=2, length=3, most=8)
    assert [one.prompt.tolist() for one in found] == [[5], [2]], "of eight tokens the last two make no piece"
    assert [one.tokens.tolist() for one in found] == [[6, 7], [8, 2]]
    with pytest.raises(InputError, match="have 4 tokens"):
        continued([[5, 6, 7]], 2, 3, 100)
    with pytest.raises(InputError, match="length is 1"):
        continued([[5, 6, 7]], 2, 1, 100)
