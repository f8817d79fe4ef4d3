"""Medusa heads calibrated to given accuracies, by placing the target's next token at a random rank.

The target is an oracle here and never billed. Must not know about papers, devices or costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

from repro.models.forward.network import Logits, Network, RewrittenStep, Step, rows_of
from repro.models.tokens.kv_slots import MedusaLineage
from repro.models.tokens.prefix import Prefix


class MatchedHeads:
    """A Medusa network that places the target's token at a random rank, drawn per feature and head.

    The random numbers are independent and depend only on the feature's text, the head and a seed. So a head
    predicts the same in every tree and method, and a path is accepted with the product of its accuracies.
    Greedy decoding only: logits have ranks but no values.
    """

    def __init__(
        self, draft: Network, oracle: Network, accuracies: Sequence[Sequence[float]], seed: int
    ) -> None:
        """Args:
        draft: the uncalibrated heads; their other tokens keep their order.
        oracle: the target with a separate cache.
        accuracies: `[head][rank]`: probability that the token at that rank is the target's; the remainder to
            1 is the probability that none is.
        seed: of the random ranks.
        """
        self._draft = draft
        self._oracle = oracle
        self._sums = [list(accumulate(head)) for head in accuracies]
        self._seed = seed
        self._lineage = MedusaLineage(0, len(self._sums))
        self._choices: dict[Prefix, int] = {}
        self.depth = draft.depth

    def start(self, prompt: Prefix) -> None:
        """See `Network`; starts both networks."""
        self._lineage = MedusaLineage(prompt.length, len(self._sums))
        self._choices.clear()
        self._draft.start(prompt)
        self._oracle.start(prompt)

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        """A pass of the heads; the oracle runs when the logits are read."""
        step = self._draft.begin(wanted, branches)
        return RewrittenStep(step, wanted, lambda texts, rows: list(map(self.rewrite, texts, rows)))

    def keep(self, text: Prefix) -> None:
        """See `Network`; applies to both networks."""
        self._lineage.keep(text)
        self._draft.keep(text)
        self._oracle.keep(text)

    def rewrite(self, prefix: Prefix, row: Logits) -> Logits:
        """A head's logits with the target's token moved to the random rank."""
        feature, head = self._lineage.root_and_head(prefix)
        rank = bisect_right(self._sums[head], coin(feature, head, self._seed))
        token = self._ahead(prefix.up_to(feature.length + 1), head)
        return with_rank(row, token, rank if rank < len(self._sums[head]) else None)

    def _ahead(self, root: Prefix, head: int) -> int:
        """The target's greedy token `head + 1` places after a text."""
        for _ in range(head):
            root = root.then(self._choice(root))
        return self._choice(root)

    def _choice(self, text: Prefix) -> int:
        if text not in self._choices:
            self._choices[text] = rows_of(self._oracle, [text])[0].choice
        return self._choices[text]


def coin(feature: Prefix, head: int, seed: int) -> float:
    """A pseudorandom number in [0, 1) from a text's tokens, a head and a seed."""
    hashed = blake2b(b"%d %d " % (seed, head) + feature.digest, digest_size=8).digest()
    return int.from_bytes(hashed, "little") / 2**64


def with_rank(row: Logits, token: int, rank: int | None) -> Logits:
    """Move a token to a rank, or with `None` remove it from the kept ranks.

    The other tokens keep their order, and the sorted log-probabilities stay as they were.
    """
    tokens, logps = row.top_ranks()
    order = [other for other in tokens if other != token]
    if rank is not None:
        order.insert(rank, token)
    count = min(len(order), len(logps))
    return Logits(None, (order[:count], logps[:count]))
