"""The training of adapters: texts side by side, only answers count, the loss falls, weights stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm import lora
from repro.methods.elastilm.submodels import UnitDecoder, reorder, submodel
from repro.methods.elastilm.unit_importance import DifferentiableDecoder
from repro.models.transformer.cache import KVCache
from tiny_dense import dense
from tiny_elastic import order_of, uneven
from workshop.training.answers import Answer
from workshop.training.loop import Schedule, Training, by_length
from workshop.training.train_lora import Adapters, RecoveryLoss, continued, packed_loss

FAMILIES = ["llama-2", "qwen-2.5", "gemma-2", "opt"]


def texts(count: int = 6, seed: int = 0) -> list[Answer]:
    """Random questions; each answer repeats its last token, which can be learned."""
    chance = torch.Generator().manual_seed(seed)
    asked = [torch.randint(1, 131, (3 + i % 4,), generator=chance) for i in range(count)]
    return [Answer(one, one[-1:].repeat(2 + i % 3)) for i, one in enumerate(asked)]


def differentiable(sub: UnitDecoder) -> DifferentiableDecoder:
    return DifferentiableDecoder(sub.config, sub.layers, sub.ends)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_texts_side_by_side_are_texts_one_by_one(family: str) -> None:
    made, wanted = dense(family), 0.0
    for one in texts():
        tokens = torch.cat((one.prompt, one.tokens))
        logits = made.forward(tokens, torch.arange(len(tokens)), None, KVCache(made.config, 4))
        start = len(one.prompt)
        wanted += float(F.cross_entropy(logits[start - 1 : -1], one.tokens, reduction="sum"))
    found, _ = packed_loss(differentiable(made), texts())
    assert float(found) == pytest.approx(wanted, rel=1e-4)


def test_adapters_begin_as_nothing_and_the_loss_falls() -> None:
    made = dense("llama-2")
    order, kept = order_of(made), uneven(made)
    sub = submodel(reorder(made, order), kept)
    adapters = Adapters(sub, kept, lora.MATRICES, 4, 0)
    loss = RecoveryLoss(differentiable(lora.attach_adapters(sub, adapters.lora(kept, order))), 16, "cpu")
    with torch.no_grad():
        before = float(packed_loss(differentiable(sub), texts())[0]) / sum(len(one.tokens) for one in texts())
    assert loss.heldout(texts()) == pytest.approx(before)
    weights = [t.clone() for t in tensors(sub)]
    schedule = Schedule(steps=60, tokens=16, rate=2e-2, warmup=1, decay=1.0, weight_decay=0.0)
    training = Training(adapters, schedule, None, "cpu")
    training.run(lambda epoch: by_length(texts(), schedule, epoch), loss, minutes=1e9, every=30)
    assert loss.heldout(texts()) < 0.5 * before
    assert all(map(torch.equal, weights, tensors(sub))), "only adapters are trained"


def tensors(sub: UnitDecoder) -> list[Tensor]:
    return [t for layer in sub.layers if layer for p in layer.linears for t in p.tensors().values()]


def test_texts_are_read_one_behind_the_other() -> None:
    found = continued([[5, 6, 7], [8], [9, 9, 9, 9]], end=2, length=3, most=8)
    assert [one.prompt.tolist() for one in found] == [[5], [2]], "of eight tokens the last two make no piece"
    assert [one.tokens.tolist() for one in found] == [[6, 7], [8, 2]]
    with pytest.raises(InputError, match="have 4 tokens"):
        continued([[5, 6, 7]], 2, 3, 100)
    with pytest.raises(InputError, match="length is 1"):
        continued([[5, 6, 7]], 2, 1, 100)
