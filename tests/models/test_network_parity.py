"""A network's rows are transformers' of whole sequences: prompt, token by token, tree, and after a choice.

Passes over a cache are held to another implementation here and not to our own passes without one, which would
share a shifted position or a wrong mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from tiny_families import write

TOLERANCE = 1e-3
PROMPT = Prefix.of([5, 17, 99, 3, 42, 77, 8])


@pytest.mark.parametrize("family", ["llama-2", "gemma-2", "phi-2", "opt", "gpt-2"])
def test_rows_over_a_cache_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = write(family, tmp_path)
    decoder = weights.load(tmp_path)
    network = DecoderNetwork(decoder)

    def require_equal(wanted: Sequence[Prefix]) -> None:
        step = network.begin(wanted)
        step.layers(0, decoder.config.layers)
        for prefix, row in zip(wanted, step.rows(), strict=True):
            tokens = torch.tensor([prefix.tokens(start=0)])
            with torch.no_grad():
                expected = model(tokens).logits[0, -1]
            assert (row.logits - expected).abs().max() < TOLERANCE * expected.abs().max(), prefix.tokens(
                start=0
            )

    network.start(PROMPT)
    require_equal([PROMPT])
    text = PROMPT
    for token in (1, 2, 3):
        text = text.then(token)
        require_equal([text])
    left, right = text.then(10), text.then(11)
    require_equal([left, right, left.then(12), right.then(13), left.then(14)])
    chosen = right.then(13)
    network.keep(chosen)
    require_equal([chosen.then(20), chosen.then(21)])
