"""Objectives, deciders, and the check: whatever a decider says, what comes out meets the objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.core.errors import InputError
from repro.methods.serving.deciders import (
    ByProfile,
    Checked,
    Decider,
    Infeasible,
    Largest,
    Nominal,
    Oracle,
    Rule,
    ServiceRequest,
    SloGuard,
    Uniform,
)
from repro.methods.serving.service_profile import DeviceProfile, LevelProfile, Spent
from repro.methods.serving.slo import LEVELS, Decision, LatencySlo, RequestCosts, decisions, kept_tokens


def level_profile(share: float) -> LevelProfile:
    """A level whose passes cost 2 s and 4 J a token of prefill, 10 s and 30 J a step, and its share of that;
    a fifth of a step stays the same on every level. To come to it takes 5 s."""
    at = (1, 101)
    prefill = tuple(Spent(2.0 * share * n, 4.0 * share * n) for n in at)
    step = Spent(10.0 * (0.2 + 0.8 * share), 30.0 * share)
    return LevelProfile(at, prefill, (step, step), Spent(5.0, 1.0))


PROFILE = DeviceProfile({level: level_profile(level) for level in LEVELS}, level_profile(1.0))


def request(objective: LatencySlo, prompt: int = 50, answer: int = 4, name: str = "a") -> ServiceRequest:
    return ServiceRequest(name, tuple(range(prompt)), answer, objective)


@dataclass(frozen=True)
class Stubborn(Decider):
    """Says one thing whatever is asked, as a language model might."""

    decision: Decision

    def decide(self, request: ServiceRequest, feasible: Sequence[Decision]) -> Decision:
        return self.decision


def test_an_objective_is_met_to_the_last_digit_and_no_further() -> None:
    full = RequestCosts(10.0, 2.0, 30.0, 100.0)
    exact = RequestCosts(5.0, 1.0, 15.0, 50.0)
    every = LatencySlo(ttft=0.5, tpot=0.5, time=0.5, energy=0.5)
    assert every.met(exact, full)
    for name in RequestCosts._fields:
        over = exact._replace(**{name: getattr(exact, name) * (1 + 1e-12)})
        assert not every.met(over, full)
        others = replace(every, **{name: None})
        assert others.met(over, full), "what is not asked for does not count"
    with pytest.raises(InputError, match="energy"):
        every.met(exact._replace(energy=None), full)


def test_the_nominal_rule_is_a_product() -> None:
    objective = LatencySlo(ttft=0.4, tpot=0.7)
    found = Nominal().feasible(request(objective), None)
    tenths = [(p, m) for p in range(2, 11) for m in range(2, 11) if p * m <= 40 and m <= 7]
    assert found == [Decision(p / 10, m / 10) for p, m in tenths]
    assert LatencySlo(ttft=0.12).met_nominally(Decision(0.4, 0.3)), "0.4 x 0.3 is 0.12, also in binary"
    with pytest.raises(InputError, match="energy"):
        LatencySlo(energy=0.5).met_nominally(Decision(0.4, 0.3))


def test_a_profile_counts_what_a_level_takes() -> None:
    present = PROFILE.costs(0.4, 25, 4, 0.4)
    assert present == pytest.approx((20.0, 5.2, 20.0 + 3 * 5.2, 40.0 + 3 * 12.0))
    other = PROFILE.costs(0.4, 25, 4, 0.6, Spent(1.0, 2.0))
    assert other == pytest.approx((26.0, 5.2, 26.0 + 3 * 5.2, 43.0 + 3 * 12.0)), "switching and deciding"
    assert PROFILE.costs(0.4, 25, 1, 0.4).tpot is None, "one token has no token after it"
    assert PROFILE.whole(50, 4) == PROFILE.costs(1.0, 50, 4, 1.0)
    with pytest.raises(InputError, match="102 tokens were not profiled"):
        PROFILE.whole(102, 1)
    with pytest.raises(InputError, match=r"level 0\.45"):
        PROFILE.costs(0.45, 50, 4, None)


def test_who_is_on_a_level_may_use_what_switching_takes_from_others() -> None:
    asked = request(LatencySlo(ttft=0.5))
    rule = ByProfile(PROFILE, (1.0,))
    assert [one.model for one in rule.feasible(asked, 0.5)] == [0.2, 0.3, 0.4, 0.5]
    assert [one.model for one in rule.feasible(asked, 0.3)] == [0.2, 0.3, 0.4]
    assert [one.model for one in rule.feasible(asked, 0.3, Spent(15.0, 0.0))] == [0.2, 0.3]


SHARES = st.sampled_from([None, 0.05, 0.2, 0.35, 0.4, 0.5, 0.65, 0.8, 1.0])
OBJECTIVES = st.tuples(SHARES, SHARES, SHARES, SHARES).filter(any).map(lambda given: LatencySlo(*given))
DECISIONS = st.builds(Decision, st.sampled_from([0.1, *LEVELS]), st.sampled_from([0.1, *LEVELS]))
DECIDERS = st.one_of(
    DECISIONS.map(Stubborn), st.builds(Uniform), st.sampled_from([Largest(), Largest("model")])
)


@given(
    OBJECTIVES,
    DECIDERS,
    st.sampled_from(["random", "release"]),
    st.integers(1, 101),
    st.integers(1, 40),
    st.sampled_from([None, *LEVELS]),
    st.floats(0, 30),
)
def test_no_violating_decision_comes_through(
    objective: LatencySlo,
    decider: Decider,
    fallback: str,
    prompt: int,
    answer: int,
    present: float | None,
    deciding: float,
) -> None:
    asked, spent = request(objective, prompt, min(answer, 101 - prompt + 1)), Spent(deciding, deciding)
    full = PROFILE.whole(prompt, asked.answer)
    try:
        out = SloGuard(decider, ByProfile(PROFILE), fallback).decide(asked, present, spent)
    except Infeasible:
        every = (costs_of(asked, one, present, spent) for one in decisions())
        assert not any(objective.met(costs, full) for costs in every)
        return
    assert objective.met(costs_of(asked, out.decision, present, spent), full)
    if isinstance(decider, Stubborn):
        assert out.fell_back == (out.decision != decider.decision)
    else:
        assert not out.fell_back


def costs_of(asked: ServiceRequest, one: Decision, present: float | None, spent: Spent) -> RequestCosts:
    return PROFILE.costs(one.model, asked.read(one.prompt), asked.answer, present, spent)


TIGHT = LatencySlo(ttft=0.2, tpot=0.5)


def test_the_release_falls_back_to_the_largest_model_that_goes_with_the_prompt() -> None:
    """And where that prompt goes with none to the largest model of all."""
    for prompt in (0.4, 0.1):
        check = SloGuard(Stubborn(Decision(prompt, 1.0)), Nominal(), "release")
        assert check.decide(request(TIGHT)) == Checked(Decision(0.4, 0.5), True)
    check = SloGuard(Stubborn(Decision(0.6, 1.0)), Nominal(), "release")
    assert check.decide(request(TIGHT)) == Checked(Decision(0.6, 0.3), True)


def test_the_oracle_takes_the_lightest_that_is_right_and_feasible() -> None:
    light, equal, heavy = Decision(0.6, 0.2), Decision(0.4, 0.3), Decision(1.0, 1.0)
    right = {"a": {equal, heavy, light}, "b": {heavy}, "c": set[Decision]()}
    check = SloGuard(Oracle(right), Nominal())
    assert check.decide(request(TIGHT)) == Checked(light, False), "of equal products the smaller model"
    for name in ("b", "c"):
        out = check.decide(request(TIGHT, name=name))
        assert TIGHT.met_nominally(out.decision)
        assert not out.fell_back
    with pytest.raises(InputError, match="no request 'd'"):
        check.decide(request(TIGHT, name="d"))


def test_nothing_feasible_is_an_error_that_says_what_was_asked() -> None:
    rules: tuple[Rule, ...] = (Nominal(), ByProfile(PROFILE))
    for rule in rules:
        with pytest.raises(Infeasible, match=r"'tpot': 0\.05"):
            SloGuard(Uniform(), rule).decide(request(LatencySlo(tpot=0.05)))


def test_kept_tokens() -> None:
    assert [kept_tokens(10, level) for level in (0.3, 0.7, 1.0, 0.01)] == [3, 7, 10, 1]
    assert kept_tokens(11, 0.5) == 5
