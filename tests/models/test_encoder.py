"""What an encoder bills to the last byte, whoever computes; what of it lies in memory."""

from __future__ import annotations

import pytest

from repro.device.emulated import EmulatedDevice
from repro.device.trace import Span
from repro.models.costs.model_cost import EncoderShape, ModelCost, Shape, precision
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from tiny import toy

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
        Engine(
            "target", device or EmulatedDevice(toy()), MODEL_COST, NoNetwork(), placement, token_count=tokens
        )
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
