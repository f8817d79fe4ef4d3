"""Recorded ranks: what is counted, what an answer's end hides, and the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.core.errors import InputError
from repro.methods.speculative.drafting.head_ranks import Calibration, HeadRanks
from repro.models.forward.network import RANKED, Logits
from workshop.training.head_ranks import answer_ranks, joined


def record(rows: list[list[int]], begins: tuple[int, ...] = (0,)) -> HeadRanks:
    return HeadRanks(torch.tensor(rows, dtype=torch.int16), begins)


def row(*tokens: int) -> Logits:
    return Logits(None, (list(tokens), [0.0] * len(tokens)))


def test_the_token_k_places_on_is_ranked_in_head_k_s_row() -> None:
    said = [[row(7, 6, 5), row(5, 7, 6)], [row(4, 5, 9), row(5, 4, 9)], [row(9, 8), row(1, 2)]]
    ranks = answer_ranks([3, 6, 5, 8], said)
    # The first head is asked for 6, 5, 8 and the second for 5, 8, and nothing after the end.
    assert ranks.tolist() == [[1, 0], [1, RANKED], [1, RANKED]]
    assert ranks.dtype == torch.int16


def test_accuracies_count_positions_that_have_such_a_token() -> None:
    ranks = record([[0, 0], [1, 0], [0, RANKED], [RANKED, 2], [0, RANKED]], begins=(0, 3))
    assert ranks.ends.tolist() == [3, 3, 3, 5, 5]
    first, second = ranks.accuracies(3)
    assert first == [3 / 5, 1 / 5, 0.0]
    assert second == [2 / 3, 0.0, 1 / 3], "the last position of each answer has no token two places on"
    assert Calibration.of(ranks).accuracies[0][:3] == (3 / 5, 1 / 5, 0.0)


def test_a_head_beyond_every_answer_is_said() -> None:
    with pytest.raises(InputError, match="2 places after its first"):
        record([[0, 0], [0, 0]], begins=(0, 1)).accuracies()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    ranks = record([[0, 1], [RANKED, 3], [2, 0]], begins=(0, 2))
    ranks.save(tmp_path / "ranks.safetensors", {"dataset": "mt_bench"})
    found = HeadRanks.load(tmp_path / "ranks.safetensors")
    assert torch.equal(found.ranks, ranks.ranks)
    assert found.begins == (0, 2)


def test_another_file_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "ranks.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a whole safetensors file"):
        HeadRanks.load(tmp_path / "ranks.safetensors")


def test_answers_are_joined_and_empty_ones_left_out() -> None:
    parts = [torch.zeros(n, 2, dtype=torch.int16) for n in (2, 0, 3)]
    assert joined(parts).begins == (0, 2)
    assert joined(parts).positions == 5
    with pytest.raises(InputError, match="no answer has a second token"):
        joined([parts[1]])


@pytest.mark.parametrize("begins", [(), (1,), (0, 2, 2), (0, 3)])
def test_answers_must_begin_in_order(begins: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="must begin at 0 and ascend"):
        record([[0], [0], [0]], begins)
