"""Lineage against a plain list of what every slot holds, over random walks of growing and keeping."""

import random

import pytest

from repro.models.tokens.kv_slots import Lineage
from repro.models.tokens.prefix import Prefix


class Model:
    """The same bookkeeping, naively: one prefix a slot, and sight by comparing token lists."""

    def __init__(self, outside: int) -> None:
        self.lineage = Lineage(outside)
        self.outside = outside
        self.slots: list[Prefix] = []

    def grow(self, wanted: list[Prefix]) -> None:
        rows = self.lineage.missing(wanted)
        if not rows:
            return
        mask = self.lineage.mask(rows)
        everything = self.slots + rows
        for i, row in enumerate(rows):
            truth = [row.starts_with(held) for held in everything]
            causal = [j <= len(self.slots) + i for j in range(len(everything))]
            assert (causal if mask is None else mask[i].tolist()) == truth
            assert sum(truth) == row.length - self.outside
        self.lineage.add(rows)
        self.slots += rows
        assert all(p in self.lineage for p in wanted)

    def keep(self, text: Prefix) -> None:
        stay = {p for p in self.slots if text.starts_with(p) or p.starts_with(text)}
        base, slots = self.lineage.keep(text)
        self.slots = self.slots[:base] + [self.slots[s] for s in slots]
        assert set(self.slots) == stay
        assert self.lineage.length == len(self.slots)
        assert all(p in self.lineage for p in self.slots)


@pytest.mark.parametrize("outside", [0, 4])
@pytest.mark.parametrize("seed", range(200))
def test_slots_hold_what_a_plain_list_of_sequences_holds(seed: int, outside: int) -> None:
    rng = random.Random(seed)
    model = Model(outside)
    nodes = [Prefix.of(rng.randrange(3) for _ in range(outside + rng.randint(1, 6)))]
    for _ in range(30):
        if rng.random() < 0.6:
            grown = [
                rng.choice(nodes).extend(rng.randrange(3) for _ in range(rng.randint(0, 3)))
                for _ in range(rng.randint(1, 4))
            ]
            nodes += grown
            model.grow(grown)
        else:
            text = rng.choice(nodes)
            model.keep(text)
            nodes = [n for n in nodes if n.starts_with(text)]
