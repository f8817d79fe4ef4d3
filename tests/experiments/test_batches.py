"""Batches: what goes out together, and what is planned again when a worker dies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from repro.experiments.batches import LOSSES, MOST, Batches, Began, CellBatch, Ended, Gone, WaitingCell


def cell(number: int, kind: str = "a", real: bool = False) -> WaitingCell:
    return WaitingCell(number, {}, (kind,), real)


def batches(cells: Iterable[WaitingCell], seconds: float | None = 1.0, left: int = 1000) -> Batches:
    return Batches(iter(cells), lambda: left, lambda _: seconds)


def numbers(batch: CellBatch | None) -> list[int]:
    assert batch is not None
    return [each.number for each in batch.cells]


class TestWhatGoesOutTogether:
    def test_cells_of_one_kind_and_two_minutes(self) -> None:
        found = batches((cell(n, "ab"[n % 2]) for n in range(20)), 30.0)
        assert numbers(found.next_batch(1)) == [0, 2, 4, 6]
        assert numbers(found.next_batch(1)) == [1, 3, 5, 7]

    @pytest.mark.parametrize("seconds", [4000.0, None])
    def test_one_at_least_and_one_of_unknown_time(self, seconds: float | None) -> None:
        found = batches([cell(0), cell(1)], seconds)
        assert [numbers(found.next_batch(1)) for _ in range(2)] == [[0], [1]]
        assert found.next_batch(1) is None

    def test_what_is_known_when_it_goes_out_counts(self) -> None:
        known: list[float | None] = [None]
        found = Batches((cell(n) for n in range(10)), lambda: 1000, lambda _: known[-1])
        assert numbers(found.next_batch(1)) == [0]
        known.append(60.0)
        assert numbers(found.next_batch(1)) == [1, 2]

    def test_all_workers_have_some(self) -> None:
        found = batches((cell(n) for n in range(16)), 0.1, left=16)
        assert numbers(found.next_batch(2)) == [0, 1, 2, 3]

    def test_not_too_many(self) -> None:
        found = batches((cell(n) for n in range(3 * MOST)), 0.001, left=10**6)
        assert len(numbers(found.next_batch(2))) == MOST

    def test_no_more_is_read_than_is_needed(self) -> None:
        rest = iter([cell(n) for n in range(10)])
        batches(rest, None).next_batch(1)
        assert next(rest).number == 1

    def test_real_devices_have_one_batch_at_a_time(self) -> None:
        found = batches([cell(0, real=True), cell(1, real=True), cell(2, "b")], 200.0)
        first = found.next_batch(1)
        assert first is not None
        assert numbers(first) == [0]
        assert numbers(found.next_batch(1)) == [2]
        assert found.next_batch(1) is None
        found.see(Gone(first.number))
        assert numbers(found.next_batch(1)) == [1]


class TestALostBatch:
    def ten(self) -> tuple[Batches, CellBatch]:
        found = batches((cell(n) for n in range(10)), left=20)
        batch = found.next_batch(1)
        assert numbers(batch) == list(range(10))
        assert batch is not None
        return found, batch

    def test_the_cells_that_came_back_are_not_planned_again(self) -> None:
        found, batch = self.ten()
        for number in range(4):
            found.see(Began(number))
            found.see(Ended(number, "came back"))
        found.see(Began(4))
        assert found.see(Gone(batch.number, lost=True)) == {4: False}
        assert numbers(found.next_batch(1)) == [4], "one that was lost goes out alone"
        assert numbers(found.next_batch(1)) == [5, 6, 7, 8, 9]
        assert found.next_batch(1) is None

    def test_a_batch_that_had_not_begun_blames_no_cell(self) -> None:
        found, batch = self.ten()
        assert found.see(Gone(batch.number, lost=True)) == {}
        assert numbers(found.next_batch(1)) == list(range(10))

    def test_what_a_worker_did_not_send_is_planned_again(self) -> None:
        found, batch = self.ten()
        found.see(Ended(0, "came back"))
        assert found.see(Gone(batch.number)) == {}
        assert numbers(found.next_batch(1)) == list(range(1, 10))

    def test_a_cell_that_comes_back_late_does_not_go_out_again(self) -> None:
        found, batch = self.ten()
        found.see(Gone(batch.number, lost=True))
        found.see(Ended(0, "came back"))
        assert numbers(found.next_batch(1)) == list(range(1, 10))

    def test_a_cell_in_which_workers_die_is_given_up(self) -> None:
        found = batches([cell(0)])
        for loss in range(1, LOSSES + 1):
            batch = found.next_batch(1)
            assert batch is not None
            found.see(Began(0))
            assert found.see(Gone(batch.number, lost=True)) == {0: loss == LOSSES}
        assert found.next_batch(1) is None
