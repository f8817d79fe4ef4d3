"""Weights rounded by rows: multiples of a step, no further off than half of one, reordered or not."""

from __future__ import annotations

import pytest
import torch

from repro.core.errors import InputError
from repro.methods.elastilm import elastic_profile
from repro.methods.elastilm.submodels import reorder
from repro.models.analysis.hooks import linears_of
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.quantization import round_to_nearest
from repro.models.quantization.round_to_nearest import nearest, round_decoder
from repro.models.transformer.linear import as_plain
from repro.scenarios.serving.asked import read_model
from tiny_dense import dense, logits
from tiny_elastic import order_of


def test_the_largest_of_a_row_is_its_largest_code() -> None:
    weight = torch.tensor([[7.0, -3.4, 0.6, 0.4], [-0.7, 0.34, -0.16, 0.0], [0.0, 0.0, 0.0, 0.0]])
    wanted = torch.tensor([[7.0, -3.0, 1.0, 0.0], [-0.7, 0.3, -0.2, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.allclose(nearest(weight, 4), wanted)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_are_off_by_half_a_step_at_most(bits: int) -> None:
    made = dense("qwen-2.5")
    pairs = zip(linears_of(made), linears_of(round_decoder(made, bits)), strict=True)
    for (_, before), (_, after) in pairs:
        weight, found = as_plain(before).weight, as_plain(after).weight
        step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert ((weight - found).abs() <= 0.5001 * step).all()
        codes = found / step
        assert torch.allclose(codes, codes.round(), atol=1e-3)
        assert as_plain(after).bias is as_plain(before).bias


def test_units_may_be_reordered_before_or_behind() -> None:
    made = dense("llama-2")
    whole = round_decoder(made, 4)
    assert torch.allclose(logits(reorder(whole, order_of(made))), logits(whole), atol=1e-4)
    assert not torch.allclose(logits(whole), logits(made), atol=1e-2)


@pytest.mark.parametrize("bits", [1, 9])
def test_other_bits_are_refused(bits: int) -> None:
    with pytest.raises(InputError, match=f"2 to 8 bits, not to {bits}"):
        round_decoder(dense("llama-2"), bits)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_what_was_made_of_a_checkpoint_serves_its_rounded_weights_too(bits: int | None) -> None:
    checkpoint = read_model("smollm2_135m").checkpoint
    assert checkpoint is not None
    made = round_to_nearest.load(open_checkpoint(checkpoint), bits)
    folder = elastic_profile.committed_folder(made)
    assert folder is not None
    assert (folder / elastic_profile.PROFILE).is_file()
