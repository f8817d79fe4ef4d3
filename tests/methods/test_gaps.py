"""A draft that computes in the gaps of a target's pass: it keeps to them, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from repro.device.cost import Curve, Flash
from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Request
from repro.methods.edgellm.edgellm import EdgeLLM, wait_for_gap
from repro.models.forward.network import DecoderNetwork, KnownStep, Logits, NoNetwork, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from tiny import DEVICES, MODEL_COST, NoisedNetwork, answer, here, model_cost_of, plain, processor, toy
from tiny_families import write

IN_GAPS = Placement(run=1, background=True)
SLOW, EVEN, FAST = 2e4, 1e8, 1e9  # bytes per second from flash; a layer's 2304 take 23 us at the second


def pair(rate: float, place: Placement) -> tuple[Session, Session]:
    """A streamed target and a draft on one processor."""
    device = EmulatedDevice(toy(flash=Flash(Curve(((1.0, rate),))), processors={"cpu": processor()}))
    target = Session(Engine("target", device, MODEL_COST, NoNetwork(), place))
    return target, Session(Engine("draft", device, MODEL_COST, NoNetwork(), IN_GAPS))


def verified(rate: float, place: Placement, beside: bool) -> tuple[float, int]:
    """Seconds of a target's pass, and how many of a draft's lay within it, which may run `beside` it."""
    target, draft = pair(rate, place)
    draft.engine.turn = partial(wait_for_gap, draft.engine, target.engine)

    async def run() -> None:
        text = Prefix.of([1, 2])
        for _ in range(3):  # so that the paces are known
            await target.forward([text := text.then(0)])
            await draft.forward([text])
        verification = target.device.spawn(target.forward([text.then(1)]))
        while beside and not verification.done:
            await draft.forward([text := text.then(0)])
        await verification

    target.device.play(run())
    last = target.passes[-1]
    return last.end - last.start, sum(last.start < p.start and p.end < last.end for p in draft.passes)


@pytest.mark.parametrize("rate", [SLOW, EVEN, FAST])
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_draft_that_yields_never_keeps_the_target_waiting(
    prefetch: int, preload: bool, rate: float
) -> None:
    """Its ops end before the layer on its way is there, and none begins when that is there already."""
    place = Placement(resident=0.0, prefetch=prefetch, preload=preload)
    (alone, _), (beside, within) = (verified(rate, place, beside) for beside in (False, True))
    assert beside == pytest.approx(alone)
    assert within > 0 or rate > SLOW


class Failing:
    """A network that answers the first passes and then fails at a pass's end."""

    depth = 0

    def __init__(self, good: int) -> None:
        self._good = good

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        self._good -= 1
        rows = [Logits(None, ([0], [0.0])) for _ in wanted]
        return KnownStep(rows) if self._good >= 0 else _Broken(rows)

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""


class _Broken(KnownStep):
    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        raise ArithmeticError("no rows")


@pytest.mark.parametrize("provisional", ["gaps", "naive", "never"])
@pytest.mark.parametrize("open_device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("good", [{"target": 2, "draft": 99}, {"target": 99, "draft": 9}])
def test_a_pass_that_fails_is_an_error_and_no_deadlock(
    good: dict[str, int], open_device: Callable[[], Device], provisional: str
) -> None:
    device = open_device()
    resident = float(device.clock.kind == "wall")  # there is nothing to stream there
    method = EdgeLLM(provisional=provisional, limit=4, resident=resident)
    networks = {role: Failing(count) for role, count in good.items()}
    with pytest.raises(ArithmeticError, match="no rows"):
        answer(method, Request("", (1, 2), 30), device, networks)
    device.close()


@pytest.mark.parametrize("form", ["tree", "branches"])
@pytest.mark.parametrize("provisional", ["gaps", "naive", "never"])
def test_while_layers_really_stream_the_text_is_the_targets_own(
    provisional: str, form: str, tmp_path: Path
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        write("qwen-3", tmp_path / "checkpoint")
    whole, bare = (weights.load(tmp_path / "checkpoint", is_resident=held) for held in (True, False))
    method = EdgeLLM(provisional=provisional, verification=form, choices=3, limit=4, ahead=3)
    file, request = layer_file(tmp_path / "checkpoint", cache=tmp_path), Request("", (7, 5, 3, 8, 1), 9)
    for strength in (0.0, 0.2, 20.0):
        device, model_cost, places = here(), model_cost_of(whole), method.places()
        reader = LayerReader(file, slot_count=places["target"].prefetch + 1)
        target = Session(Engine("target", device, model_cost, DecoderNetwork(bare), places["target"], reader))
        noised = NoisedNetwork(DecoderNetwork(whole), strength)
        draft = Session(Engine("draft", device, model_cost, noised, places["draft"]))
        made = device.play(method.serve(request, device, {"target": target, "draft": draft}))
        device.close()
        target.engine.close()
        assert made.tokens == plain(whole, request), f"at noise {strength}"
