"""Two rules that know no engine: seconds scale with bytes, or with operations, from the nearest fitted
row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

from workshop.validation.phones.chips import bandwidth, peaks
from workshop.validation.phones.quantities import DECODE, Quantity, work

BYTES, FLOPS = "bytes", "flops"
RULES = (BYTES, FLOPS)


def amount(quantity: Quantity, rule: str) -> float:
    """Seconds that a token would take at the data sheet's bandwidth, or at its peak."""
    asked, row = work(quantity), quantity.row
    if rule == BYTES:
        return (asked.bytes + asked.head_bytes) / bandwidth(row.soc)
    peak = peaks(row.soc, row.processor, row.threads)[asked.precision][0]
    return (asked.flops + asked.head_flops) / quantity.rows / peak


def nearest(quantity: Quantity, fitted: Sequence[Quantity], rule: str) -> Quantity | None:
    """The fitted quantity to scale from: of its group if there is one, else of its class, else of its
    processor.

    Decoding is scaled from decoding, prefill and time to the first token from either of them. Among the rows
    that remain the one with the most similar amount is taken.
    """
    same = [q for q in fitted if (q.kind == DECODE) == (quantity.kind == DECODE)]
    row = quantity.row
    for choice in (
        [q for q in same if q.row.group == row.group],
        [q for q in same if q.row.engine == row.engine],
        [q for q in same if q.row.processor == row.processor],
    ):
        if choice:
            own = amount(quantity, rule)
            return min(choice, key=lambda q: (abs(log(amount(q, rule) / own)), q.id))
    return None


def trivial(wanted: Iterable[Quantity], fitted: Sequence[Quantity], rule: str) -> dict[str, float]:
    """Values in their printed units by id, from rows of other sources or models than the quantity's own.

    A quantity without a fitted row on its kind of processor has none.
    """
    found = {}
    for quantity in wanted:
        own = quantity.row.source, quantity.row.shape
        others = [q for q in fitted if (q.row.source, q.row.shape) != own]
        if (near := nearest(quantity, others, rule)) is not None:
            each = near.printed(near.measured) / near.rows * amount(quantity, rule) / amount(near, rule)
            found[quantity.id] = quantity.printed(each * quantity.rows)
    return found
