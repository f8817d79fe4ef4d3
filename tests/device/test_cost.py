"""Seconds and bandwidth of an op, worked out by hand; and fair sharing, whatever is demanded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.device.cost import Curve, Flash, share
from repro.device.op import Op
from tiny import processor

EPS = 1e-9


def test_a_curve_is_straight_between_its_points_and_flat_beyond() -> None:
    curve = Curve(((2.0, 10.0), (4.0, 20.0), (8.0, 0.0)))
    assert [curve.at(x) for x in (0, 2, 3, 4, 5, 8, 100)] == [10, 10, 15, 20, 15, 0, 0]


def test_an_op_takes_the_longer_of_computing_and_moving() -> None:
    cpu = processor()  # 1 G operations/s, 1 GB/s, 10 us
    computing = cpu.demand(Op("cpu", "k", "a", flops=3e6, bytes=1e6))
    assert (computing.launch, computing.work, computing.watts) == (1e-5, pytest.approx(3e-3), 2.0)
    assert computing.bandwidth == pytest.approx(1e6 / 3e-3)
    moving = cpu.demand(Op("cpu", "k", "b", flops=1e6, bytes=3e6))
    assert (moving.work, moving.bandwidth) == (pytest.approx(3e-3), pytest.approx(1e9))
    assert cpu.demand(Op("cpu", "k", "c")).bandwidth == 0.0


def test_precision_kind_and_efficiency_set_the_rate() -> None:
    cpu = processor(slower={"attention": 3.0}, efficiency=Curve(((1.0, 0.5), (5.0, 1.0))))
    assert cpu.demand(Op("cpu", "k", "a", flops=1e6)).work == pytest.approx(2e-3)
    assert cpu.demand(Op("cpu", "k", "a", rows=5, flops=1e6)).work == pytest.approx(1e-3)
    assert cpu.demand(Op("cpu", "k", "a", flops=1e6, precision="int8")).work == pytest.approx(0.5e-3)
    assert cpu.demand(Op("cpu", "attention", "a", flops=1e6)).work == pytest.approx(6e-3)


def test_a_precision_and_a_kind_of_op_may_have_curves_of_their_own() -> None:
    own = {"int8": Curve(((1.0, 0.5),)), "head.int8": Curve(((1.0, 0.25),))}
    start = {"fp32": Curve(((1.0, 1e-3),)), "head.fp32": Curve(((1.0, 3e-3), (3.0, 5e-3)))}
    cpu = processor(own_efficiency=own, start=start)  # int8 at 4 G operations/s, 10 us of launch

    def work(kind: str, precision: str) -> float:
        return cpu.demand(Op("cpu", kind, "a", flops=1e6, precision=precision)).work

    assert [work(*of) for of in (("layer", "int8"), ("head", "int8"), ("head", "fp32"))] == pytest.approx(
        [0.5e-3, 1e-3, 1e-3]
    )
    launches = [cpu.demand(Op("cpu", kind, "a", rows=2, launches=2)).launch for kind in ("layer", "head")]
    assert launches == pytest.approx([2 * 1.01e-3, 2 * 4.01e-3])
    assert cpu.demand(Op("cpu", "head", "a", precision="int8")).launch == 1e-5


def test_attention_takes_its_own_rate_where_an_engine_has_one() -> None:
    op = Op("cpu", "layer", "a", rows=2, flops=3e6, attention=1e6)
    assert processor().demand(op).work == pytest.approx(3e-3)
    apart = processor(attention=Curve(((1.0, 1e9), (3.0, 0.0))), efficiency=Curve(((1.0, 0.5),)))
    assert apart.demand(op).work == pytest.approx(2e6 / 0.5e9 + 1e6 / 0.5e9)
    assert apart.demand(Op("cpu", "head", "a", rows=2, flops=3e6)).work == pytest.approx(6e-3)
    padded = processor(attention=Curve(((1.0, 1e9),)), tile=4)
    assert padded.demand(op).work == pytest.approx(2 * 3e-3)  # four rows are computed, two were asked for


def test_a_kernel_that_reuses_weights_badly_moves_longer_with_every_row() -> None:
    def seconds(rows: int, flops: float = 0.0, **changes: float) -> float:
        op = Op("cpu", "k", "a", rows=rows, flops=flops, bytes=2e6)
        return processor(rows_exponent=0.5, **changes).demand(op).work

    assert [seconds(rows) for rows in (1, 4, 9)] == pytest.approx([2e-3, 4e-3, 6e-3])  # 2 ms at 1 GB/s
    assert seconds(3, tile=4) == pytest.approx(4e-3)  # four rows are computed
    assert seconds(4, flops=5e6) == pytest.approx(5e-3)  # computing at 1 G operations/s takes longer
    slow = processor(rows_exponent=0.5).demand(Op("cpu", "k", "a", rows=4, bytes=2e6))
    assert slow.bandwidth == pytest.approx(0.5e9)  # and leaves DRAM to others


def test_rows_round_up_to_tiles_and_static_shapes() -> None:
    assert [processor(tile=4).rows(rows) for rows in (1, 4, 5)] == [4, 4, 8]
    npu = processor(tile=2, shapes=(1, 8, 32))
    assert [npu.rows(rows) for rows in (1, 7, 8, 9, 32, 33, 65)] == [8, 8, 8, 32, 32, 64, 96]
    padded = npu.demand(Op("npu", "k", "a", rows=2, flops=2e6, bytes=8.0))
    assert padded.work == pytest.approx(8e-3)  # eight rows' operations are computed, two were asked for


def test_flash_reads_at_the_rate_of_its_requests() -> None:
    flash = Flash(Curve(((1e3, 1e7), (1e6, 1e8))), latency=1e-4, watts=1.0)
    whole = flash.demand(Op("flash", "load", "a", bytes=1e6))
    assert (whole.launch, whole.work, whole.bandwidth) == (1e-4, pytest.approx(1e-2), pytest.approx(1e8))
    pieces = flash.demand(Op("flash", "load", "a", bytes=1e6, request=1e3))
    assert pieces.work == pytest.approx(1e-1)


def test_shares_by_hand() -> None:
    assert share(10, [3, 4]) == [3, 4]
    assert share(10, [8, 8]) == [5, 5]
    assert share(10, [1, 20, 6]) == [1, 4.5, 4.5]
    assert share(10, [2, 3, 20]) == [2, 3, 5]
    assert share(10, []) == []


@given(st.floats(1, 1e12), st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e12)), max_size=8))
def test_shares_are_max_min_fair(capacity: float, demands: list[float]) -> None:
    granted = share(capacity, demands)
    slack = EPS * max(capacity, 1.0)
    assert all(0 <= g <= d for g, d in zip(granted, demands, strict=True))
    assert sum(granted) <= capacity + slack
    assert sum(granted) >= min(capacity, sum(demands)) - slack  # nothing is left over while someone wants it
    starved = [g for g, d in zip(granted, demands, strict=True) if g < d - slack]
    # Who gets less than it wants gets as much as anyone.
    assert all(g >= max(granted) - slack for g in starved)


@given(st.floats(1, 1e9), st.lists(st.floats(1, 1e9), min_size=2, max_size=6), st.randoms())
def test_shares_do_not_depend_on_the_order(capacity: float, demands: list[float], chance) -> None:
    order = list(range(len(demands)))
    chance.shuffle(order)
    granted = share(capacity, demands)
    shuffled = share(capacity, [demands[i] for i in order])
    assert shuffled == pytest.approx([granted[i] for i in order], rel=1e-9)
