"""Invented accuracies of heads, and invented records of which of a head's guesses was right."""

from __future__ import annotations

import random
from itertools import product

import torch

from repro.methods.speculative.drafting.head_ranks import TOP_RANKS, HeadRanks
from repro.models.forward.network import RANK_COUNT


def accuracies(seed: int, heads: int = 3, ranks: int = 3) -> list[list[float]]:
    """Random ones that fall from rank to rank."""
    chance = random.Random(seed)
    return [sorted((chance.random() / ranks for _ in range(ranks)), reverse=True) for _ in range(heads)]


def record(seed: int, positions: int = 300, heads: int = 4, answers: int = 7) -> HeadRanks:
    """Random ranks, low ones more often, of answers of random lengths, ended as recording ends them."""
    chance = random.Random(seed)
    begins = (0, *sorted(chance.sample(range(1, positions), answers - 1)))
    weights = [0.5 / (rank + 1) ** 1.2 for rank in range(TOP_RANKS + 3)]
    choices = [*range(TOP_RANKS + 2), RANK_COUNT]
    rows = [chance.choices(choices, weights, k=heads) for _ in range(positions)]
    ends = (*begins[1:], positions)
    for end in ends:
        for at, head in product(range(end - heads, end), range(heads)):
            if at >= 0 and at + head >= end:
                rows[at][head] = RANK_COUNT
    return HeadRanks(torch.tensor(rows, dtype=torch.int16), begins)
