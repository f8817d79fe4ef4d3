"""The elastic service: bills of its levels, what systems pay for switching, and calls on real sub-models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
import yaml

from repro.core.device import Device, EmulatedDevice
from repro.core.errors import InputError
from repro.core.op import Op
from repro.methods.deciding import Ask, ByProfile, Check, Decider, Largest, Nominal, Rule, Unmet
from repro.methods.elastic_levels import kept_at
from repro.methods.objectives import LEVELS, Decision, Objective
from repro.methods.service import Level, LLMService, bind_llm_service
from repro.methods.services.base import System, profile_of
from repro.methods.services.elastilm import ElastiLM
from repro.methods.shortening import Scorer
from repro.models.config import DecoderConfig
from repro.models.elastic import Kept, Order, UnitDecoder, reordered, submodel
from repro.models.lora import RANK, Adapter, Lora, Site, attached, shapes
from repro.models.shape import Bill, Shape, precision
from repro.models.uneven_bill import UnevenBill, config_of_shape, sub_bill
from repro.paths import conf_dir
from tiny import Request as Asked
from tiny import bill_of, here, plain, toy
from tiny_dense import dense

FAMILY = "llama-3.1"
GRID = tuple(range(1, 33))


def shape(name: str) -> Shape:
    return Shape.parse(yaml.safe_load((conf_dir() / "model" / "shape" / f"{name}.yaml").read_text()))


SEVEN = Bill(shape("llama_7b"), precision("fp16"))


# --- bills


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_billed_by_its_true_parameters(level: float) -> None:
    config = config_of_shape(SEVEN.shape)
    kept = kept_at(config, level, range(6))
    bill = sub_bill(SEVEN, kept, adapted=False)
    weights = kept.parameters(config)
    assert bill.block_bytes == 2 * weights
    assert bill.model_bytes == 2 * (weights + SEVEN.shape.table_weights)
    flops, moved = bill.layers(32, 7, 100)
    units = sum(kept.units)
    assert flops == 2 * 7 * weights + 4 * 7 * 100 * units * 128
    assert moved == 2 * (weights + 2 * 107 * units * 128)
    assert bill.cache_bytes(9) == 2 * 2 * 9 * units * 128
    assert bill.layers(8, 7, 100) == pytest.approx((flops / 4, moved / 4))


def test_the_whole_costs_what_it_always_did_and_has_no_adapters() -> None:
    bill = sub_bill(SEVEN, kept_at(config_of_shape(SEVEN.shape), 1.0, ()))
    assert bill.adapters == 0
    assert bill.layers(32, 5, 60) == SEVEN.layers(32, 5, 60)
    same = ("layer_bytes", "model_bytes", "table_bytes")
    assert [getattr(bill, name) for name in same] == [getattr(SEVEN, name) for name in same]
    with pytest.raises(InputError, match="3 layers are billed"):
        UnevenBill(SEVEN.shape, SEVEN.stored, (SEVEN.shape,) * 3)


def test_adapters_are_billed_as_they_are() -> None:
    made = dense(FAMILY)
    kept = kept_at(made.config, 0.5, (1,))
    bill = sub_bill(bill_of(made), kept)
    adapters = lora_of(made.config, kept)
    assert bill.adapters == adapters.parameters > 0
    bare = sub_bill(bill_of(made), kept, adapted=False)
    layers = made.config.layers
    assert bill.layers(layers, 3, 0)[0] - bare.layers(layers, 3, 0)[0] == 2 * 3 * bill.adapters


# --- the service


class Letters:
    """A token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 32 for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class Vowels(Scorer):
    """Vowels matter."""

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        return [float(chr(token + 32) in "aeiou") for token in tokens]


class Told(Decider):
    """Decides as it is told, for a kilobyte of reading."""

    def __init__(self, *decisions: Decision) -> None:
        self._left = list(decisions)

    def decide(self, ask: Ask, feasible: Sequence[Decision]) -> Decision:
        return self._left.pop(0)

    def ops(self, ask: Ask, on: str) -> tuple[Op, ...]:
        return (Op(on, "decide", "decide", bytes=1000),)


@cache
def whole() -> tuple[UnitDecoder, Order]:
    made = dense(FAMILY)
    chance, c = torch.Generator().manual_seed(1), made.config
    units, neurons = (
        tuple(torch.randperm(count, generator=chance) for _ in range(c.layers))
        for count in (c.kv_heads, c.intermediate)
    )
    order = Order(units, neurons)
    return reordered(made, order), order


def lora_of(config: DecoderConfig, kept: Kept) -> Lora:
    """Random adapters beside all matrices of a sub-model."""
    chance = torch.Generator().manual_seed(2)
    adapters: dict[Site, Adapter] = {}
    for site, (inputs, outputs) in shapes(config, kept).items():
        narrow = torch.randn(RANK, inputs, generator=chance)
        adapters[site] = Adapter(narrow, 0.05 * torch.randn(outputs, RANK, generator=chance))
    return Lora(adapters, kept, whole()[1].digest)


@cache
def tiny_system() -> System:
    found = ElastiLM(anchors=0.0).system(bill_of(dense(FAMILY)))
    return replace(found, levels={level: found.levels[level] for level in (0.5, 0.8, 1.0)})


@cache
def tiny_levels() -> dict[float, Level]:
    config, found = whole()[0].config, {}
    for level, bill in tiny_system().levels.items():
        kept = kept_at(config, level, ())
        found[level] = Level(kept, bill, lora_of(config, kept) if level < 1 else None)
    return found


def by_profile() -> Rule:
    return ByProfile(profile_of(tiny_system(), EmulatedDevice(toy()), GRID), (0.5, 1.0))


def service(decider: Decider, rule: Rule, device: Device | None = None) -> LLMService:
    return LLMService(
        device or EmulatedDevice(toy()),
        Letters(),
        whole()[0],
        tiny_levels(),
        tiny_system().switching,
        Check(decider, rule),
        Vowels(),
    )


def alone(level: float, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What the sub-model of a level says by itself."""
    to = tiny_levels()[level]
    views = submodel(whole()[0], to.kept)
    made = attached(views, to.adapters) if to.adapters else views
    return tuple(plain(made, Asked("", tuple(prompt), count)))


ANY = Objective(ttft=1.0)
NOMINAL = Nominal((0.5, 1.0), (0.5, 0.8, 1.0))
PROMPT = "a prompt of some letters"


def test_several_apps_share_one_model_that_changes_its_level() -> None:
    decisions = [Decision(1.0, 0.5), Decision(1.0, 0.8), Decision(1.0, 0.8), Decision(0.5, 1.0)]
    made = service(Told(*decisions), NOMINAL)
    chat, agent = bind_llm_service(made, "chat", ANY), bind_llm_service(made, "agent", ANY)
    said = [
        chat.call_llm(PROMPT, max_tokens=5),
        agent.call_llm("another one", max_tokens=3),
        chat.call_llm(PROMPT, max_tokens=4),
        agent.call_llm(PROMPT, Objective(tpot=1.0), max_tokens=4),
    ]
    assert [reply.decision for reply in said] == decisions
    assert [reply.switched for reply in said] == [True, True, False, True]
    assert not any(reply.fell_back for reply in said)
    letters = Letters().encode
    assert said[0].tokens == alone(0.5, letters(PROMPT), 5)
    assert said[1].tokens == alone(0.8, letters("another one"), 3)
    assert said[2].tokens == alone(0.8, letters(PROMPT), 4)
    assert said[3].tokens == alone(1.0, letters("a prompooeee"), 4), "vowels stay, then the first letters"
    assert (said[3].prompt, said[3].text) == (12, Letters().decode(said[3].tokens))
    assert [phase.name for phase in made.device.trace.phases] == [
        *("decide", "switch", "prefill", "decode"),
        *("decide", "switch", "prefill", "decode"),
        *("decide", "prefill", "decode"),
        *("decide", "switch", "prefill", "decode"),
    ]


def test_a_call_takes_what_the_profile_says_and_meets_its_objective() -> None:
    rule = by_profile()
    assert isinstance(rule, ByProfile)
    made = service(Largest("model"), rule)
    app = made.bind("app", ANY)
    tokens, present = len(PROMPT), None
    full = rule.profile.whole(tokens, 6)
    asked = [Objective(ttft=0.9, tpot=0.9), Objective(ttft=0.6), Objective(time=0.8), Objective(energy=0.95)]
    for objective in asked:
        reply = app.call_llm(PROMPT, objective, max_tokens=6)
        assert reply.costs == pytest.approx(
            rule.profile.costs(reply.decision.model, reply.prompt, 6, present), rel=1e-9
        )
        assert objective.met(reply.costs, full)
        present = reply.decision.model


def test_what_a_decider_takes_counts() -> None:
    made = service(Told(Decision(1.0, 1.0), Decision(1.0, 1.0)), NOMINAL)
    app = made.bind("app", ANY)
    app.call_llm(PROMPT)
    (phase,) = [phase for phase in made.device.trace.phases if phase.name == "decide"]
    assert phase.seconds == pytest.approx(1e-5 + 1e-6), "a launch and a kilobyte"
    profile = by_profile()
    assert isinstance(profile, ByProfile)
    quick, slow = service(Largest(), profile), service(Told(Decision(1.0, 1.0)), profile)
    first = [one.bind("app", ANY).call_llm(PROMPT, Objective(tpot=1.0)) for one in (quick, slow)]
    assert first[1].costs.ttft == pytest.approx(first[0].costs.ttft + phase.seconds)


def test_a_wrong_decision_falls_back_and_an_impossible_objective_changes_nothing() -> None:
    made = service(Told(Decision(1.0, 1.0), Decision(1.0, 1.0)), NOMINAL)
    app = made.bind("app", Objective(tpot=0.6))
    reply = app.call_llm(PROMPT)
    assert reply.fell_back
    assert reply.decision.model == 0.5
    with pytest.raises(Unmet, match="app/2"):
        app.call_llm(PROMPT, Objective(tpot=0.4))
    assert made.on == 0.5
    assert app.call_llm(PROMPT, ANY).tokens == alone(1.0, Letters().encode(PROMPT), 16)


def test_an_app_must_be_bound_once() -> None:
    made = service(Largest(), NOMINAL)
    app = made.bind("app", ANY)
    made.bind("other", ANY)
    with pytest.raises(InputError, match="bound already"):
        made.bind("app", ANY)
    with pytest.raises(InputError, match="0 tokens"):
        app.call_llm(PROMPT, max_tokens=0)
    app.unbind()
    for late in (lambda: app.call_llm(PROMPT), app.unbind):
        _raises(late, "bound are other")
    assert made.bind("app", ANY).call_llm(PROMPT, max_tokens=2).tokens


def _raises(call: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def test_without_a_scorer_prompts_stay_whole() -> None:
    made = replace(service(Told(Decision(0.5, 1.0), Decision(1.0, 1.0)), NOMINAL), scorer=None)
    app = made.bind("app", ANY)
    with pytest.raises(InputError, match=r"shortened to 0\.5"):
        app.call_llm(PROMPT)
    assert app.call_llm(PROMPT).prompt == len(PROMPT)


def test_this_machine_says_the_same() -> None:
    device = here()
    try:
        app = service(Told(Decision(1.0, 0.5), Decision(0.5, 0.8)), NOMINAL, device).bind("app", ANY)
        first, second = app.call_llm(PROMPT, max_tokens=5), app.call_llm(PROMPT, max_tokens=4)
    finally:
        device.close()
    assert first.tokens == alone(0.5, Letters().encode(PROMPT), 5)
    assert second.tokens == alone(0.8, Letters().encode("a prompooeee"), 4)
    assert 0 < first.costs.ttft < first.costs.time
    assert first.costs.energy is None
