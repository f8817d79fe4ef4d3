"""Passes of fixed shapes say what ordinary passes say, whatever asks for them, recorded or as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from repro.models.forward.network import Captured, DecoderNetwork, Network
from repro.models.runtime.cuda import GraphRecorder, Work, as_it_is
from repro.models.runtime.recorded_passes import RecordedNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from tiny_families import FAMILIES, write

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
CPU, GPU = torch.device("cpu"), torch.device("cuda")
both = pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=pytest.mark.gpu)], ids=str)


def replayed(work: Work) -> Work:
    """Record like a CUDA graph, which runs the work once before it is played."""
    work()
    return work


@cache
def decoder(family: str, device: torch.device = CPU) -> Decoder:
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write(family, Path(folder))
        return weights.load(folder, is_packed=False, device=device)


def networks(family: str, device: torch.device, capacity: int = 96) -> tuple[Network, Network]:
    if device == GPU and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    record: Callable[[Work], Work] = GraphRecorder() if device == GPU else replayed
    whole = decoder(family, device)
    return DecoderNetwork(whole), RecordedNetwork(whole, capacity, record)


def logits(network: Network, wanted: list[Prefix], branches: list[Prefix] | None = None) -> torch.Tensor:
    step = network.begin(wanted, branches or ())
    step.layers(0, network.depth)
    return torch.stack([row.logits.clone() for row in step.rows()])


def alike(pair: tuple[Network, Network], wanted: list[Prefix], branches: list[Prefix] | None = None) -> None:
    plain, recorded = (logits(network, wanted, branches) for network in pair)
    torch.testing.assert_close(recorded, plain, **CLOSE)


def keep(pair: tuple[Network, Network], text: Prefix) -> None:
    for network in pair:
        network.keep(text)


def tree(root: Prefix) -> list[Prefix]:
    left, right = root.then(3), root.then(4)
    return [root, left, right, left.then(5), right.then(6), right.then(6).then(7)]


@both
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_recorded_network_says_what_an_ordinary_one_says(family: str, device: torch.device) -> None:
    """Prompt, single rows, a chain, trees whose path is kept, branches apart, and a second request."""
    pair = networks(family, device)
    for first in (1, 2):
        for network in pair:
            network.start(Prefix.empty())
        text = Prefix.of([first, *range(2, 9)])
        alike(pair, [text])
        for token in (1, 2):
            text = text.then(token)
            alike(pair, [text])
        nodes = tree(text.then(2))
        alike(pair, nodes)
        keep(pair, nodes[4].then(1))  # an accepted path that is not the first branch
        chain = [nodes[4].then(1)]
        while len(chain) < 5:
            chain.append(chain[-1].then(len(chain)))
        alike(pair, chain)
        keep(pair, chain[1])
        forked = [chain[1].then(7), chain[1].then(6).then(5)]
        alike(pair, forked, forked)


@both
def test_rows_may_be_dropped_in_the_middle(device: torch.device) -> None:
    pair = networks("llama-2", device)
    text = Prefix.of(range(1, 7))
    alike(pair, [text])
    nodes, rows = tree(text.then(2)), []
    for network in pair:
        step = network.begin(nodes)
        step.layers(0, 1)
        step.drop([0, 2, 4])
        step.layers(1, network.depth)
        rows.append(torch.stack([row.logits for row in step.rows([0, 2])]))
        network.keep(nodes[4])
    torch.testing.assert_close(rows[1], rows[0], **CLOSE)
    alike(pair, [nodes[4].then(3)])


@both
def test_a_cache_that_grows_is_recorded_anew(device: torch.device) -> None:
    pair = networks("llama-2", device, capacity=8)
    text = Prefix.of(range(1, 60))
    alike(pair, [text])
    for token in range(1, 30):
        text = text.then(token)
        alike(pair, [text])


@both
def test_features_for_a_head_are_those_of_ordinary_passes(device: torch.device) -> None:
    if device == GPU and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    whole, text = decoder("llama-2", device), Prefix.of(range(1, 7))
    depths, seen = (1, whole.config.layers), []
    for recorded in (False, True):
        captured = Captured(depths)
        record = GraphRecorder() if device == GPU else as_it_is
        network = (
            RecordedNetwork(whole, 64, record, captured) if recorded else DecoderNetwork(whole, 64, captured)
        )
        for asked in ([text], [text.then(1), text.then(1).then(2)], [text.then(1).then(2).then(3)]):
            logits(network, asked)
        seen.append(captured.of([text, text.then(1), text.then(1).then(2)]))
    torch.testing.assert_close(seen[1], seen[0], **CLOSE)
