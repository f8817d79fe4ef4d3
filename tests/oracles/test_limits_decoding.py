"""Limits of decoding in closed form: every figure here follows on paper from the machine's numbers."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from repro.device.cost import Curve
from repro.device.op import CPU, NPU
from repro.methods.base import Method
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.ghidorah.ghidorah import Ghidorah, MedusaEM
from repro.methods.lever.lever import Lever
from repro.methods.plain.autoregressive import (
    FlashAutoregressive,
    Sequential,
    Standard,
    StandardPipeline,
    StandardSwapping,
)
from repro.methods.speculative.bld import BigLittle
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.medusa import Medusa
from repro.methods.speculative.nav import Nav
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.specinfer import SpecInfer
from tiny_limits import ALL, DRAFT, HEADS, LAYERS, PROMPT, SHAPE, TARGET, WRONG, machine, run

FREE_ATTENTION = Curve(((1.0, inf),))
CHAIN = EdgeLLM(navigation=False, fallback=False, length=3, provisional="never")
DRAFTING = {
    "chain_sd": ChainSD(length=3),
    "sp": SpeculativeDecoding(length=3),
    "bld": BigLittle(most=3),
    "specinfer": SpecInfer(expansion=(1, 1, 1)),
    "opt_tree": OptTree(nodes=3, depth=3),
    "edgellm": EdgeLLM(limit=3, ahead=4),
    "edgellm, a chain": CHAIN,
    "edgellm, naive": EdgeLLM(limit=3, ahead=4, provisional="naive"),
    "lever": Lever(pruning="off", depth=3),
}
"""Methods whose trees hold the three next tokens of a draft that is sure of them."""


# --- one token a pass


@pytest.mark.parametrize("layers", [1, LAYERS])
def test_one_token_reads_the_model_once(layers: int) -> None:
    """Infinitely fast computing at 1 MB/s: a pass takes what it reads, and so does its energy."""
    tokens, rate, busy_watts, idle_watts = 4, 1e6, 3.0, 2.0
    on = machine(idle_watts=idle_watts, bandwidth=rate, watts=busy_watts)
    model_cost = replace(TARGET, shape=replace(SHAPE, layers=layers))
    values, _ = run(Standard(), on, tokens, model_costs={"target": model_cost})

    def pass_bytes(rows: int, cached: int) -> float:
        return 10 * rows + layers * (1000 + 40 * (cached + rows)) + 1000

    prefill_s = pass_bytes(PROMPT, 0) / rate
    decode_s = sum(pass_bytes(1, PROMPT + step) for step in range(tokens - 1)) / rate
    assert values["ttft"] == values["prefill_seconds"] == pytest.approx(prefill_s)
    assert values["prefill_tokens_per_s"] == pytest.approx(PROMPT / prefill_s)
    assert values["decode_seconds"] == pytest.approx(decode_s)
    assert values["latency"] == pytest.approx(prefill_s + decode_s)
    assert values["time_per_token"] == values["target_pass"] == pytest.approx(decode_s / (tokens - 1))
    assert values["decode_joules"] == pytest.approx((busy_watts + idle_watts) * decode_s)
    assert values["prefill_joules"] == pytest.approx((busy_watts + idle_watts) * prefill_s)


def test_one_token_computes_each_weight_once() -> None:
    """Infinitely fast memory at 1 M operations/s, attention free: two operations a weight and row."""
    on = machine(peak={"int8": 1e6}, attention=FREE_ATTENTION)
    values, _ = run(Standard(), on, tokens=4)
    assert values["ttft"] == pytest.approx(2 * (PROMPT * LAYERS * 1000 + 1000) / 1e6)
    assert values["time_per_token"] == pytest.approx(2 * (LAYERS * 1000 + 1000) / 1e6)


@pytest.mark.parametrize("layers", [1, LAYERS])
@pytest.mark.parametrize(("read_ms", "compute_ms"), [(3, 1), (1, 3)])
def test_a_streamed_pass_is_bound_by_the_slower_of_reading_and_computing(
    layers: int, read_ms: int, compute_ms: int
) -> None:
    """Every op takes one launch: the embedding, each layer, the projection."""
    on = machine(read_s=read_ms / 1e3, launch=compute_ms / 1e3)
    model_costs = {"target": replace(TARGET, shape=replace(SHAPE, layers=layers))}
    both_ms = min(read_ms, compute_ms) + layers * max(read_ms, compute_ms)
    overlapped_ms = compute_ms + both_ms + compute_ms
    alternating_ms = compute_ms + layers * (read_ms + compute_ms) + compute_ms
    for method, pass_ms in (
        (FlashAutoregressive(), overlapped_ms),
        (StandardPipeline(), overlapped_ms),
        (StandardSwapping(), alternating_ms),
    ):
        values, _ = run(method, on, tokens=3, model_costs=model_costs)
        assert values["time_per_token"] == pytest.approx(pass_ms / 1e3)
        assert values["ttft"] == pytest.approx(pass_ms / 1e3)
        assert values["flash_bytes_per_token"] == layers * 1000
        assert values["flash_busy"] == pytest.approx(layers * read_ms / pass_ms)


def test_a_projection_that_is_not_kept_is_read_like_a_layer() -> None:
    on = replace(machine(read_s=3e-3, launch=1e-3), keeps_tables=False)
    values, _ = run(FlashAutoregressive(), on, tokens=3)
    assert values["time_per_token"] == pytest.approx(1e-3 + (LAYERS + 1) * 3e-3 + 1e-3)
    assert values["flash_bytes_per_token"] == LAYERS * 1000 + 1000
    values, _ = run(FlashAutoregressive(), replace(on, serial_reads=True), tokens=3)
    assert values["time_per_token"] == pytest.approx(1e-3 + (LAYERS + 1) * (3e-3 + 1e-3))


def test_what_is_all_in_memory_or_on_flash_without_delay_is_plain_decoding() -> None:
    plain, _ = run(Standard(), machine(launch=1e-3), tokens=5)
    assert plain["time_per_token"] == pytest.approx((1 + LAYERS + 1) * 1e-3)
    for method, read_s in ((FlashAutoregressive(), 0.0), (FlashAutoregressive(resident=1.0), 1.0)):
        values, _ = run(method, machine(read_s=read_s, launch=1e-3), tokens=5)
        assert values["decode_seconds"] == pytest.approx(plain["decode_seconds"])
    assert values["flash_bytes_per_token"] == 0


# --- a draft that is free


@pytest.mark.parametrize("name", DRAFTING)
def test_a_free_draft_that_is_always_right_gives_its_length_and_one_a_verification(name: str) -> None:
    """A verification takes four reads of 10 ms; three drafts and one of the target's tokens come of it."""
    rounds, verification_s = 5, LAYERS * 0.01
    values, answers = run(
        DRAFTING[name], machine(read_s=0.01, idle_watts=2.0, processors=ALL), 1 + 4 * rounds
    )
    assert [r.emitted for r in answers[0].rounds] == [4] * rounds
    assert values["acceptance_length"] == 4
    assert values["accepted_draft_tokens"] == 3
    assert values["error_rate"] == 0
    assert values["target_calls"] == rounds
    assert values["target_pass"] == pytest.approx(verification_s)
    assert values["decode_tokens_per_s"] == pytest.approx(4 / verification_s)
    assert values["joules_per_token"] == pytest.approx(2.0 * verification_s / 4), "idle power alone"
    assert values["flash_bytes_per_token"] == LAYERS * 1000 / 4


LOSSLESS = sorted(DRAFTING.keys() - {"bld"})
"""BLD takes what its target finds likely enough, and a draft that is never right is not."""


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_free_draft_that_is_never_right_leaves_one_token_a_verification(name: str) -> None:
    verification_s = LAYERS * 0.01
    values, answers = run(DRAFTING[name], machine(read_s=0.01, processors=ALL), 7, draft=WRONG)
    assert [r.emitted for r in answers[0].rounds] == [1] * 6
    assert values["acceptance_length"] == 1
    assert values["accepted_draft_tokens"] == 0
    assert values["error_rate"] == 1
    assert values["decode_tokens_per_s"] == pytest.approx(1 / verification_s)


@pytest.mark.parametrize("name", sorted(DRAFTING))
@pytest.mark.parametrize("tokens", range(2, 11))
def test_a_draft_that_is_the_target_never_errs_at_any_length(name: str, tokens: int) -> None:
    """What the answer's end cuts off is no error of the draft's."""
    values, answers = run(DRAFTING[name], machine(read_s=0.01, processors=ALL), tokens)
    assert values.get("error_rate", 0) == 0
    assert values["target_calls"] == ((tokens - 1) // 4 if name == "bld" else -(-(tokens - 1) // 4))
    assert sum(r.emitted for r in answers[0].rounds) == tokens - 1


def test_what_computing_binds_speculation_does_not_speed_up() -> None:
    """Four rows take four times one row's time: four tokens a verification gain nothing."""
    on = machine(peak={"int8": 1e6}, attention=FREE_ATTENTION)
    free_draft = {
        "draft": replace(DRAFT, shape=replace(SHAPE, layers=1, hidden=1, intermediate=1, head_dim=1, vocab=1))
    }
    row_s = 2 * (LAYERS * 1000 + 1000) / 1e6
    drafted_s = 3 * 2 * ((4 + 2) + 1) / 1e6
    values, _ = run(CHAIN_SD, on, 1 + 4 * 3, model_costs=free_draft)
    # A round's first pass of the draft computes the accepted draft's last token and the target's own.
    rounds_s = 3 * (4 * row_s + drafted_s) + 2 * 2 * 6 / 1e6 - 2 * 7 / 1e6
    assert values["decode_seconds"] == pytest.approx(rounds_s)


CHAIN_SD = ChainSD(length=3)


# --- a draft that takes time


@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize(
    ("method", "passes"),
    [
        (CHAIN_SD, 3),
        (CHAIN, 4),
        (OptTree(nodes=2, depth=2), 2),
        (SpecInfer(expansion=(1, 1, 1), prefetch=1), 3),
    ],
    ids=["chain_sd", "edgellm", "opt_tree", "specinfer"],
)
def test_a_draft_that_is_never_right_costs_its_drafting(method: Method, passes: int, prompts: int) -> None:
    """A launch takes 1 ms: a draft of one layer takes 3 ms a pass, a verification 43 ms.

    A round drafts with as many passes, but for the first, whose first pass is over the prompt and belongs to
    the prefill. EdgeLLM also asks what follows its last draft token.
    """
    rounds, draft_s = 6, 3e-3
    verification_s = 1e-3 + LAYERS * 10e-3 + 1e-3 + 1e-3
    values, answers = run(
        method, machine(read_s=10e-3, launch=1e-3), 1 + rounds, draft=WRONG, prompts=prompts
    )
    decode_s = rounds * (passes * draft_s + verification_s) - draft_s
    assert values["acceptance_length"] == 1
    assert values["draft_pass"] == pytest.approx(draft_s)
    assert values["draft_seconds"] == pytest.approx(prompts * (rounds * passes - 1) * draft_s)
    assert values["decode_seconds"] == pytest.approx(prompts * decode_s)
    assert values["decode_tokens_per_s"] == pytest.approx(rounds / decode_s)
    assert values["ttft"] == pytest.approx(verification_s), "the first token is the target's alone"
    assert values["prefill_seconds"] == pytest.approx(prompts * (verification_s + draft_s))
    assert values["latency"] == pytest.approx(verification_s + draft_s + decode_s)
    total = sum(answer.ended - answer.arrived for answer in answers)
    assert values["prefill_seconds"] + values["decode_seconds"] == pytest.approx(total)  # type: ignore[operator]


def test_a_draft_that_is_always_right_gives_four_tokens_for_its_passes_and_a_verification() -> None:
    rounds, draft_s, verification_s = 3, 3e-3, 43e-3
    values, _ = run(CHAIN_SD, machine(read_s=10e-3, launch=1e-3), 1 + 4 * rounds)
    decode_s = rounds * (3 * draft_s + verification_s) - draft_s
    assert values["decode_tokens_per_s"] == pytest.approx(4 * rounds / decode_s)


def test_drafting_that_hides_behind_the_reads_costs_nothing() -> None:
    """EdgeLLM drafts its next chain while layers are read: after the first round as with a free draft."""
    processor = {"launch": 0.1e-3, "slots": 2}
    method = EdgeLLM(navigation=False, fallback=False, length=3, ahead=4, provisional="naive")
    values, answers = run(method, machine(read_s=10e-3, **processor), 1 + 4 * 5)
    assert [r.emitted for r in answers[0].rounds] == [4] * 5
    assert [r.end - r.start for r in answers[0].rounds[1:]] == pytest.approx([LAYERS * 10e-3] * 4)
    alone_s = 3 * (3 * 0.1e-3)
    assert values["draft_hidden"] == pytest.approx(1 - alone_s / values["draft_seconds"])  # type: ignore[operator]


def test_a_known_answer_takes_one_pass() -> None:
    values, _ = run(Nav(), machine(read_s=10e-3), tokens=20)
    assert values["target_calls"] == 1
    assert values["decode_seconds"] == pytest.approx(LAYERS * 10e-3)
    assert values["acceptance_length"] == 19


# --- heads, and a second processor


HEADED = {"draft": HEADS}


def test_heads_that_draft_nothing_are_plain_decoding() -> None:
    plain, _ = run(Sequential(), machine(launch=1e-3), tokens=6)
    for method in (Medusa(width=1), Ghidorah(width=1, divided=False)):
        values, _ = run(method, machine(launch=1e-3), tokens=6, model_costs=HEADED)
        assert values["acceptance_length"] == 1
        assert values["decode_seconds"] == pytest.approx(plain["decode_seconds"])
        assert values["latency"] == pytest.approx(plain["latency"] + 2e-3), "the heads' pass over the prompt"  # type: ignore[operator]


def test_sure_heads_give_their_number_and_one_a_verification() -> None:
    """A launch of 1 ms: heads take two, their blocks and their projection, and a verification six."""
    rounds = 4
    values, _ = run(Medusa(width=5), machine(launch=1e-3), 1 + 5 * rounds, model_costs=HEADED)
    assert values["acceptance_length"] == 5
    assert values["draft_pass"] == pytest.approx(2e-3)
    assert values["target_pass"] == pytest.approx(6e-3)
    assert values["decode_seconds"] == pytest.approx(rounds * (2e-3 + 6e-3))


@pytest.mark.parametrize("method", [Ghidorah(width=5), MedusaEM(width=5)], ids=["ghidorah", "medusa_em"])
def test_two_equal_processors_take_half_the_time_of_one(method: Method) -> None:
    """Computing alone counts, attention is free, and so is telling the other processor."""
    free = dict.fromkeys(("attention.int8", "sparse.int8"), Curve(((1.0, inf),)))
    own = {"peak": {"int8": 1e6}, "attention": FREE_ATTENTION, "own_efficiency": free}
    tokens = 1 + 5 * 3
    alone, _ = run(Medusa(width=5), machine(**own), tokens, model_costs=HEADED)
    both, _ = run(method, machine(processors={"gpu": {}, CPU: {}}, **own), tokens, model_costs=HEADED)
    verification_s = 5 * 2 * (LAYERS * 1000 + 1000) / 1e6
    assert alone["target_pass"] == pytest.approx(verification_s)
    assert both["target_pass"] == pytest.approx(verification_s / 2)
    assert both["decode_tokens_per_s"] == pytest.approx(2 * alone["decode_tokens_per_s"])  # type: ignore[operator]


@pytest.mark.parametrize("method", [Ghidorah(width=5), MedusaEM(width=5)], ids=["ghidorah", "medusa_em"])
def test_two_processors_that_share_one_memory_read_no_faster_than_it_gives(method: Method) -> None:
    """Each reads 1 MB/s, and so does the memory alone: dividing a pass gains nothing."""
    own, two = {"bandwidth": 1e6}, {"gpu": {}, CPU: {}}
    alone, _ = run(Medusa(width=5), machine(**own), 6, model_costs=HEADED)
    shared = replace(machine(processors=two, **own), dram_bandwidth=1e6)
    both, _ = run(method, shared, 6, model_costs=HEADED)
    apart, _ = run(method, machine(processors=two, **own), 6, model_costs=HEADED)
    assert alone["target_pass"] == pytest.approx(alone_bytes(5, PROMPT) / 1e6)
    assert both["target_pass"] >= alone["target_pass"]  # type: ignore[operator]
    assert apart["target_pass"] < alone["target_pass"]  # type: ignore[operator]


def alone_bytes(rows: int, cached: int) -> int:
    """Bytes of a pass on one processor: embeddings, layers with their key-value cache, the projection."""
    return 10 * rows + LAYERS * (1000 + 40 * (cached + rows)) + 1000


# --- LEVER


@pytest.mark.parametrize(
    ("projection", "projected_ms"),
    [("on_demand_cpu", 11 * 1), ("on_demand_npu", 11 * 2), ("eager_npu", 51 * 2)],
)
def test_lever_projects_when_and_where_its_setting_says(projection: str, projected_ms: int) -> None:
    """Projecting a row takes 1 ms on the CPU and 2 ms on the NPU; reads aside, nothing else takes time.

    OPT-Tree's 50 draft tokens hold ten right ones of a sure draft: 51 rows, of which eleven are accepted.
    """
    free = {"layer.int8": FREE_ATTENTION}
    own = {name: {"peak": {"int8": 2e6 / ms}, "own_efficiency": free} for name, ms in ((CPU, 1), (NPU, 2))}
    method = Lever(pruning="off", construction="opt_tree", projection=projection)
    values, answers = run(method, machine(read_s=10e-3, processors=own), 1 + 11 * 3)
    assert [r.emitted for r in answers[0].rounds] == [11] * 3
    assert values["verification_width"] == 51
    assert values["target_pass"] == pytest.approx((LAYERS * 10 + projected_ms) / 1e3)
    assert values["target_projection"] == pytest.approx(projected_ms / 1e3)
