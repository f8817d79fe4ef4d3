"""A divided decoder says what the whole one says, however it is divided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro.methods.ghidorah.division import RealDivision, attend, divide
from repro.methods.ghidorah.partition import AttentionExtent, Split
from repro.methods.ghidorah.tensor_parallel import DividedDecoder, divided_linears
from repro.methods.ghidorah.tree_kernels import TreePattern
from repro.models.forward.network import DecoderNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from tiny import alone, here, model_cost_of
from tiny_families import FAMILIES, write

CPU = torch.device("cpu")


TREES = ([-1], [-1, 0, 1, 2], [-1, 0, 0, 0, 1, 1, 2, 4, 4], [-1, *range(8), *range(8)])


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


gpu = pytest.mark.gpu


both = pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=gpu)], ids=str)


@cache
def plain(family: str, device: torch.device = CPU) -> Decoder:
    """A tiny decoder whose weights can be cut."""
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write(family, Path(folder))
        return weights.load(folder, is_packed=False, device=device)


def logits(decoder: Decoder, parents: Sequence[int], context: int) -> Tensor:
    """After each node of a tree that stands behind some cached tokens, `[nodes, vocab]`."""
    device, pattern = decoder.device, TreePattern.of_parents(parents)
    tokens = torch.arange(context + len(parents), device=device) * 7 % decoder.config.vocab
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], 1):
        depths[node] = depths[parent] + 1
    store = KVCache(decoder.config, 8, device=device)
    with torch.inference_mode():
        if context:
            decoder.forward(tokens[:context], torch.arange(context, device=device), None, store)
        seen = torch.cat((torch.ones(len(parents), context, dtype=torch.bool), ~pattern.hidden_mask), 1)
        positions = context + torch.tensor(depths, device=device)
        return decoder.forward(tokens[context:], positions, seen.to(device), store)


@both
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "split", [Split(0.3, keys=0.4, dense_keys=1), Split(0.5, "megatron"), Split(0.0, dense_keys=3)], ids=str
)
def test_every_family_may_be_divided(family: str, split: Split, device: torch.device) -> None:
    whole = plain(family, device)
    linears = divided_linears(whole, split.share, split.form, CPU) if split.share else whole
    expected = logits(whole, TREES[2], 9)
    torch.testing.assert_close(logits(DividedDecoder(linears, split), TREES[2], 9), expected, **CLOSE)


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(["llama-2", "llama-3.1", "llama-biased", "vicuna"]),
    share=st.floats(0, 1),
    keys=st.floats(0, 1),
    left=st.integers(0, 30),
    form=st.sampled_from(["columns", "megatron"]),
    parents=st.lists(st.integers(0, 99), max_size=20).map(
        lambda drawn: [-1, *(one % node for node, one in enumerate(drawn, 1))]
    ),
    context=st.integers(0, 20),
)
def test_any_division_of_any_tree_gives_the_same_logits(
    family: str, share: float, keys: float, left: int, form: str, parents: list[int], context: int
) -> None:
    whole, split = plain(family), Split(share, form, keys, left)
    divided = DividedDecoder(divided_linears(whole, share, form, CPU), split)
    torch.testing.assert_close(logits(divided, parents, context), logits(whole, parents, context), **CLOSE)


@both
def test_a_network_is_divided_while_it_is_in_use(device: torch.device) -> None:
    """Trees behind a text, kept and gone on from, by changing divisions."""
    whole, mine = (DecoderNetwork(plain("llama-2", device)) for _ in range(2))
    division = RealDivision(mine)
    text = Prefix.of([3, 1, 4, 1, 5])
    for split in (None, Split(0.25), Split(0.25, keys=0.5, dense_keys=2), Split(0.5, "megatron"), None):
        division.divide(split)
        children = [text, text.then(7), text.then(8), text.then(8).then(9)]
        ours, theirs = [], []
        for network, said in ((mine, ours), (whole, theirs)):
            step = network.begin(children)
            step.layers(0, network.depth)
            said.extend(row.logits for row in step.rows())
            network.keep(children[2])
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), **CLOSE)
        text = children[2].then(6)


def test_a_real_session_divides_within_its_ops() -> None:
    """An emulated one makes ops of the parts; here the whole pass is one op, and attention another."""
    made, device = plain("llama-2"), here()
    network, text = DecoderNetwork(made), Prefix.of([3, 1, 4, 1, 5])
    session = Session(Engine("target", device, model_cost_of(made), network, RESIDENT))
    session.start(text)
    device.play(session.forward([text]))
    divide(session, Split(0.5, dense_keys=1))
    assert isinstance(network.decoder, DividedDecoder)
    nodes = [text.then(7), text.then(7).then(8), text.then(7).then(9)]
    rows = device.play(session.forward(nodes))
    device.play(attend(session, AttentionExtent(3, 5, [1, 2, 2])))
    assert [span.kind for span in device.trace.spans] == ["embed", "layer", "head"] * 2 + ["attention"]
    for node, row in zip(nodes, rows, strict=True):
        torch.testing.assert_close(row.logits, alone(made, node.tokens()), **CLOSE)
    divide(session, None)
    assert network.decoder is made
