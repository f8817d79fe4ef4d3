"""The probe of layers that are left out."""

from __future__ import annotations

import pytest

from repro.methods.probes.left_out import LeftOut, carrying_share
from repro.models.analysis.layers import loss, losses_without
from tiny_dense import CORPUS, dense

TEXTS = tuple(tuple(text.tolist()) for text in CORPUS)


def test_a_layer_s_figures_are_those_of_the_losses() -> None:
    made = dense("llama-2")
    whole, without = loss(made, CORPUS), losses_without(made, CORPUS)
    found = [LeftOut(layer).look(made, (), TEXTS) for layer in range(made.config.layers)]
    assert [one["loss_without"] for one in found] == without
    assert [one["increase"] for one in found] == [nats - whole for nats in without]
    assert sorted(one["rank"] for one in found) == [1, 2, 3, 4]
    assert without[[one["rank"] for one in found].index(1)] == max(without)


@pytest.mark.parametrize(
    ("raised", "share"),
    [([8.0, 1.0, 1.0, 0.0, 0.0], 0.2), ([1.0] * 5, 0.8), ([7.0, -5.0, 2.0, 1.0], 0.5), ([0.0, 0.0], 0.0)],
)
def test_the_layers_that_carry_most_of_the_increase(raised: list[float], share: float) -> None:
    assert carrying_share(raised) == pytest.approx(share)
