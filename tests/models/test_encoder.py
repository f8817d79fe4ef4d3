"""What an encoder bills to the last byte, whoever computes; what of it lies in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from repro.device.emulated import EmulatedDevice
from repro.device.trace import Span
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.speculative.chain_sd import ChainSD
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import EncoderShape, ModelCost, Shape, precision
from repro.models.forward.network import DecoderNetwork, Network, NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import DEVICES, NoisedNetwork, answer, decoder, model_cost_of, plain, toy

# Decoder: 3 layers, rows of 8, 2 heads of 4, an MLP of 16 with two matrices, 10 tokens, fp32. Encoder: 2
# layers, an MLP of 12.
SHAPE = Shape(3, 8, 2, 2, 4, 16, 10, gated=False, encoder=EncoderShape(2, 12))
MODEL_COST = ModelCost(SHAPE, precision("fp32"))
ATTENTION, SOURCE = 4 * 8 * 8, 2 * 8 * 8
LAYER = 2 * ATTENTION + 2 * 8 * 16
ENCODER_LAYER = ATTENTION + 2 * 8 * 12
PROMPT = 5


def session(placement: Placement, device: EmulatedDevice | None = None, tokens: int = 0) -> Session:
    return Session(
        Engine("target", device or EmulatedDevice(toy()), MODEL_COST, NoNetwork(), placement, tokens=tokens)
    )


def served(opened: Session, *lengths: int) -> list[Span]:
    """A request with a prompt of 5 tokens, whose passes go on by so many new tokens each; all spans."""

    async def run() -> None:
        text = Prefix.of([1] * PROMPT)
        opened.start(Prefix.of(text.tokens()))  # what starts a request lies in another tree than its text
        await opened.forward([text])
        for length in lengths:
            text = text.extend([0] * length)
            await opened.forward([text])

    opened.device.play(run())
    return opened.device.trace.spans


def layers(rows: int, context: int, first: bool) -> tuple[int, float, float]:
    """Rows, FLOPs and bytes of one decoder layer."""
    flops = 2 * rows * (LAYER - SOURCE) + (2 * PROMPT * SOURCE if first else 0)
    flops += 4 * rows * (context + PROMPT) * 8
    moved = 4 * (LAYER if first else LAYER - SOURCE) + 4 * 2 * (context + PROMPT + rows) * 8
    return rows, flops, moved


ENCODED = (
    PROMPT,
    2 * PROMPT * ENCODER_LAYER + 4 * PROMPT * PROMPT * 8,
    4 * ENCODER_LAYER + 4 * 2 * PROMPT * 8,
)


def times(count: int, cost: tuple[int, float, float]) -> tuple[int, float, float]:
    return cost[0], count * cost[1], count * cost[2]


def model_costs(spans: list[Span], *kinds: str) -> list[tuple[str, int, float, float]]:
    return [(s.name, s.rows, s.flops, s.bytes) for s in spans if s.kind in kinds]


def test_the_encoder_runs_once_and_the_decoder_starts_with_one_row() -> None:
    assert model_costs(served(session(RESIDENT), 1, 4), "embed", "encode", "layer", "head") == [
        ("target encoder embed", 5, 0.0, 5 * 8 * 4),
        ("target encoder layers 0-1", *times(2, ENCODED)),
        ("target embed", 1, 0.0, 8 * 4),
        ("target layers 0-2", *times(3, layers(1, 0, first=True))),
        ("target head", 1, 2 * 8 * 10, 4 * 8 * 10),
        ("target embed", 1, 0.0, 8 * 4),
        ("target layers 0-2", *times(3, layers(1, 1, first=False))),
        ("target head", 1, 2 * 8 * 10, 4 * 8 * 10),
        ("target embed", 4, 0.0, 4 * 8 * 4),
        ("target layers 0-2", *times(3, layers(4, 2, first=False))),
        ("target head", 1, 2 * 8 * 10, 4 * 8 * 10),
    ]


def test_a_streamed_decoders_encoder_is_read_once_a_request() -> None:
    spans = served(session(STREAMED), 1)
    assert model_costs(spans, "encode") == [(f"target encoder layer {i}", *ENCODED) for i in range(2)]
    encoder = [(f"target encoder load {i}", 4 * ENCODER_LAYER) for i in range(2)]
    decoder = [(f"target load {i}", 4 * LAYER) for i in range(3)]
    assert [(s.name, s.bytes) for s in spans if s.kind == "load"] == encoder + 2 * decoder
    assert model_costs(spans, "layer")[3:] == [
        (f"target layer {i}", *layers(1, 1, first=False)) for i in range(3)
    ]


def test_a_second_request_is_encoded_anew() -> None:
    opened = session(RESIDENT)
    once = len(served(opened, 1))
    assert len(served(opened, 1)) == 2 * once
    assert len([s for s in opened.device.trace.spans if s.kind == "encode"]) == 2


def test_a_session_that_was_told_no_prompt_cannot_be_billed() -> None:
    opened = session(RESIDENT)

    async def run() -> None:
        await opened.forward([Prefix.of([1])])

    with pytest.raises(RuntimeError, match="must be told its prompt"):
        opened.device.play(run())


@pytest.mark.parametrize(
    ("placement", "encoder", "held"),
    [
        (RESIDENT, 2 * ENCODER_LAYER, 3 * LAYER),
        (STREAMED, 2 * ENCODER_LAYER, 2 * LAYER),
        (Placement(resident=0.4, prefetch=0), ENCODER_LAYER, 2 * LAYER),
    ],
)
def test_the_encoder_or_its_slots_take_memory(placement: Placement, encoder: int, held: int) -> None:
    tables = 2 * 8 * 10
    keys_and_values = 3 * 2 * (PROMPT + 7) * 8
    device = EmulatedDevice(toy())
    session(placement, device, tokens=PROMPT + 7).engine.reserve()
    assert device.memory.in_use == 4 * (tables + encoder + held + keys_and_values)


def test_what_is_read_at_the_start_is_what_stays() -> None:
    def loaded(placement: Placement) -> float:
        opened = session(placement)
        opened.device.play(opened.engine.load())
        return opened.device.trace.spans[0].bytes

    assert loaded(RESIDENT) == 4 * (2 * 8 * 10 + 2 * ENCODER_LAYER + 3 * LAYER)
    assert loaded(Placement(resident=0.4)) == 4 * (2 * 8 * 10 + LAYER)


def test_reading_ahead_to_a_bound_leaves_room_for_the_encoder() -> None:
    def slots(budget: int) -> int:
        device = EmulatedDevice(toy(dram_budget=4.0 * (2 * 8 * 10 + 2 * ENCODER_LAYER + budget)))
        return session(Placement(resident=0.0, prefetch=1, fill=1.0), device).engine.residency.slots

    assert (slots(3 * LAYER), slots(3 * LAYER - 1)) == (3, 2)


def test_a_tree_is_verified_as_a_mini_batch_padded_to_its_longest_branch() -> None:
    opened = session(RESIDENT)

    async def run() -> None:
        text = Prefix.of([1] * PROMPT)
        opened.start(text)
        await opened.forward([text])
        tree = TokenTree(text.then(0))
        for parent, token in [(0, 0), (0, 1), (1, 0)]:
            tree.grow(parent, token)
        await opened.forward(tree.prefixes, [tree.prefixes[leaf] for leaf in tree.leaves()])

    opened.device.play(run())
    # Two branches, of three tokens and of two, root included.
    assert model_costs(opened.device.trace.spans, "layer")[-1][1:] == times(3, layers(6, 1, first=False))


METHODS: list[Callable[[], Method]] = [
    lambda: ChainSD(length=3),
    lambda: EdgeLLM(choices=3, limit=4, ahead=3),
    lambda: SpecInfer(expansion=(1, 3, 1)),
]


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("make", METHODS, ids=["chain_sd", "edgellm", "specinfer"])
def test_a_decoder_computes_its_own_text_whatever_is_billed(make: Callable[[], Method], kind: str) -> None:
    """A proxy computes the prompt's rows itself; the bill knows one decoder row and an encoder."""
    made = decoder("llama-2")
    asked = Request("r", (7, 1, 9, 3, 3), 12)
    shape = model_cost_of(made).shape
    model_cost = ModelCost(
        replace(shape, kv_heads=shape.heads, encoder=EncoderShape(2, 16)), precision("fp32")
    )
    for strength in (0.0, 0.3):
        networks: dict[str, Network] = {
            "target": DecoderNetwork(made),
            "draft": NoisedNetwork(DecoderNetwork(made), strength),
        }
        device = DEVICES[kind]()
        found = answer(make(), asked, device, networks, dict.fromkeys(networks, model_cost))
        device.close()
        assert found.tokens == plain(made, asked)
        encoded = [s for s in device.trace.spans if s.kind == "encode"]
        assert {s.rows for s in encoded} == {5}
