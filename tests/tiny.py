"""What tests of the invariants share: a toy machine, tiny models, drafts that are noised targets."""

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from repro.device.clock import Clock, Task
from repro.device.cost import Curve, Flash, Machine, Processor
from repro.device.emulated import Device, EmulatedDevice
from repro.device.local import LocalDevice, LocalMachine
from repro.methods.base import Generation, Method, Request
from repro.methods.plain.autoregressive import Standard
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import DecoderNetwork, KnownStep, Logits, Network, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights

RATES = {"fp32": 1e9, "fp16": 2e9, "int8": 4e9}
SHAPE = Shape(layers=4, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=16, vocab=10)
MODEL_COST = ModelCost(SHAPE, precision("fp32"))


def processor(**changes: Any) -> Processor:
    """1 G operations/s in fp32, 1 GB/s, 10 us to launch, 2 W."""
    return Processor(**{"peak": RATES, "bandwidth": 1e9, "launch": 1e-5, "watts": 2.0, **changes})


def play(clock: Clock, coroutine: Coroutine[Any, None, Any]) -> Any:
    """Run a coroutine on a clock without a device; what it returns."""
    task = Task(coroutine)
    while not task.done:
        clock.next_event()()
    return task.result()


def toy(**changes: Any) -> Machine:
    """Three processors and flash that together want three times the DRAM there is."""
    processors = {"cpu": processor(slots=2), "gpu": processor(bandwidth=2e9, watts=5.0), "npu": processor()}
    parts = {
        "name": "toy",
        "main": "cpu",
        "processors": processors,
        "flash": Flash(Curve(((1.0, 1e8),)), latency=1e-6, watts=1.0),
        "dram_bandwidth": 1.5e9,
        "dram_budget": 1e9,
        "idle_watts": 0.5,
    }
    return Machine(**(parts | changes))


def here() -> LocalDevice:
    """This machine."""
    return LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 1e9))


DEVICES: dict[str, Callable[[], Device]] = {"emulated": lambda: EmulatedDevice(toy()), "local": here}


@cache
def decoder(family: str) -> Decoder:
    """A tiny random decoder of one of `tiny_families.FAMILIES`, fp32."""
    from tiny_families import write  # late: writing checkpoints takes transformers, which is slow to import

    with TemporaryDirectory() as folder:
        write(family, Path(folder))
        return weights.load(folder)


def model_cost_of(made: Decoder) -> ModelCost:
    """What a decoder's own shape costs in fp32."""
    c = made.config
    shape = Shape(
        c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocab, c.gated, c.tied
    )
    return ModelCost(shape, precision("fp32"))


class Rewritten(Step):
    """A pass whose rows are something else in the end."""

    def __init__(self, step: Step, rewrite: Callable[[list[Logits]], list[Logits]]) -> None:
        self._step, self._rewrite = step, rewrite

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        self._step.layers(first, last, streamed)

    def hidden(self) -> Tensor:
        return self._step.hidden()

    def drop(self, kept: Sequence[int]) -> None:
        self._step.drop(kept)

    def rows(self, at: Sequence[int] | None = None) -> list[Logits]:
        rows = self._rewrite(self._step.rows())
        return rows if at is None else [rows[i] for i in at]


class NoisedNetwork:
    """A network whose logits get noise: the same for the same sequence, whenever it is asked for.

    Logits are first brought to a spread of `spread`, so that a strength means the same for every family and
    drafts are unsure enough to branch. What the network said is kept in `said`, which several may share.
    """

    def __init__(
        self,
        network: Network,
        strength: float,
        said: dict[bytes, Tensor] | None = None,
        spread: float = 3.0,
        seed: int = 0,
    ) -> None:
        self._network, self._strength, self._spread, self._seed = network, strength, spread, seed
        self._said = {} if said is None else said
        self.depth = network.depth

    def start(self, prompt: Prefix) -> None:
        self._network.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        texts = list(wanted)
        if all(text.digest in self._said for text in texts):
            return KnownStep([self._noised(text) for text in texts])
        return Rewritten(
            self._network.begin(texts, branches), lambda rows: list(map(self._noised, texts, rows))
        )

    def keep(self, text: Prefix) -> None:
        self._network.keep(text)

    def _noised(self, text: Prefix, row: Logits | None = None) -> Logits:
        if row is not None:
            self._said[text.digest] = row.logits
        logits = self._said[text.digest]
        noise = torch.randn(logits.shape, generator=seeded(text, self._seed))
        return Logits(self._spread * (logits / logits.std() + self._strength * noise))


class TableNetwork:
    """Logits that are a random function of the sequence: a model of any vocabulary that costs nothing."""

    depth = 0

    def __init__(self, vocab: int, seed: int = 0, sharpness: float = 1.0) -> None:
        self.vocab, self.seed, self.sharpness = vocab, seed, sharpness
        self._said: dict[bytes, Tensor] = {}

    def logits(self, text: Prefix) -> Tensor:
        """What it says after a sequence, `[vocab]`."""
        if text.digest not in self._said:
            noise = torch.randn(self.vocab, generator=seeded(text, self.seed))
            self._said[text.digest] = self.sharpness * noise
        return self._said[text.digest]

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return KnownStep([Logits(self.logits(text)) for text in wanted])

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""


def seeded(text: Prefix, seed: int) -> torch.Generator:
    """Chance that depends on a sequence and a seed alone."""
    return torch.Generator().manual_seed(int.from_bytes(text.digest[:6], "little") * 1000 + seed)


def opened(
    method: Method,
    device: Device,
    networks: dict[str, Network],
    model_costs: dict[str, ModelCost] | None = None,
) -> dict[str, Session]:
    """The sessions that a method needs, opened as `Model.session` does."""
    return {
        role: Session(Engine(role, device, (model_costs or {}).get(role, MODEL_COST), networks[role], place))
        for role, place in method.places().items()
    }


def answer(
    method: Method,
    request: Request,
    device: Device,
    networks: dict[str, Network],
    model_costs: dict[str, ModelCost] | None = None,
) -> Generation:
    """One request, answered."""
    sessions = opened(method, device, networks, model_costs)
    for session in sessions.values():
        session.start(Prefix.of(request.prompt))
    return device.play(method.serve(request, device, sessions))


def plain(made: Decoder, request: Request) -> list[int]:
    """The target's own tokens, decoded one by one."""
    device = EmulatedDevice(toy())
    return answer(Standard(), request, device, {"target": DecoderNetwork(made)}, {}).tokens


def alone(made: Decoder, tokens: Sequence[int]) -> Tensor:
    """Logits after a sequence that is run on its own, `[vocab]`."""
    step = DecoderNetwork(made).begin([Prefix.of(tokens)])
    step.layers(0, made.config.layers)
    return step.rows()[0].logits


def chance_of(counts: Tensor, expected: Tensor) -> float:
    """Pearson's chi-square test: how likely counts at least this far off are, if `expected` is true.

    Args:
        counts: how often each outcome came.
        expected: the probability of each, in the same order; impossible ones must not have come.
    """
    counts, expected = counts.double().flatten(), expected.double().flatten() * counts.sum()
    if (counts[expected == 0] > 0).any():
        return 0.0
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2.0).double(), statistic / 2))
