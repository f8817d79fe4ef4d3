"""What is measured in a row, and the work that it needs: launches, operations and bytes of a forward pass.

Owns the assumptions on lengths that a source does not state. Must not know rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workshop.validation.phones.rows import PhoneRow, model_cost

DECODE, PREFILL, FIRST_TOKEN = "decode", "prefill", "first_token"
QUANTITIES = (DECODE, PREFILL, FIRST_TOKEN)
UNITS = {DECODE: "tokens/s", PREFILL: "tokens/s", FIRST_TOKEN: "s"}

PROMPT, GENERATED = 128, 128
"""Prompt and answer tokens where a source states none."""

EMPTY_CACHE = ("llama_cpp_cpu", "llama_cpp_gpu", "llama_cpp_npu", "llama_cpp_cuda")
"""Classes whose generation is measured from an empty cache, as `llama-bench` does."""


@dataclass(frozen=True)
class Quantity:
    """One published number of a row.

    Attributes:
        id: the row's id and the kind of the quantity.
        row: where it was printed.
        kind: `decode`, `prefill` or `first_token`.
        measured: as printed: tokens per second, or seconds.
        rows: tokens that one forward pass computes.
        context: tokens that are cached before it.
    """

    id: str
    row: PhoneRow
    kind: str
    measured: float
    rows: int
    context: int

    @property
    def phase(self) -> str:
        """`decode`, or `prefill` of rates and of times to the first token."""
        return DECODE if self.kind == DECODE else PREFILL

    def printed(self, seconds: float) -> float:
        """A pass's seconds in the unit of the measured value; and back."""
        return seconds if self.kind == FIRST_TOKEN else self.rows / seconds


@dataclass(frozen=True)
class PassWork:
    """What a pass asks of a processor.

    Attributes:
        launches: of kernels, in units of one a layer.
        flops: operations of the layers, over all rows of the pass.
        bytes: bytes that the layers move.
        head_flops: operations of the output projection, which has one row.
        head_bytes: bytes that it moves.
        embed_bytes: bytes of the embeddings looked up.
        precision: arithmetic precision.
        rows: rows of the pass.
    """

    launches: float
    flops: float
    bytes: float
    head_flops: float
    head_bytes: float
    embed_bytes: float
    precision: str
    rows: int


def quantities(rows: Iterable[PhoneRow]) -> Iterator[Quantity]:
    """Everything measured, in the order of the rows."""
    for row in rows:
        prompt = row.prompt or PROMPT
        if row.decode is not None:
            yield Quantity(f"{row.id}:{DECODE}", row, DECODE, row.decode, 1, _decoded_context(row))
        if row.prefill is not None:
            yield Quantity(f"{row.id}:{PREFILL}", row, PREFILL, row.prefill, prompt, 0)
        if row.first_token is not None:
            yield Quantity(f"{row.id}:{FIRST_TOKEN}", row, FIRST_TOKEN, row.first_token, prompt, 0)


def _decoded_context(row: PhoneRow) -> int:
    """Cached tokens when half of the answer is generated; a static cache is always read whole."""
    if row.context:
        return row.context
    own = (row.generated or GENERATED) // 2
    return own if row.engine in EMPTY_CACHE else own + (row.prompt or PROMPT)


def work(quantity: Quantity) -> PassWork:
    """The work of a quantity's forward pass: embedding, layers, output projection of one position."""
    cost = model_cost(quantity.row)
    count, rows = cost.shape.layers, quantity.rows
    flops, moved = cost.layers(count, rows, quantity.context)
    head_flops, head_bytes = cost.head(1)
    _, gathered = cost.embed(rows)
    return PassWork(
        launches=count + 2,
        flops=flops,
        bytes=moved,
        head_flops=head_flops,
        head_bytes=head_bytes,
        embed_bytes=gathered,
        precision=cost.stored.arithmetic,
        rows=rows,
    )
