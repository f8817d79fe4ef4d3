"""The cells that are measured here: engine, model, precision, rows, context, in memory or streamed.

Owns which cells there are and in which groups they are measured. Must not know how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from repro.core.errors import InputError
from repro.core.registry import unknown

OURS, LLAMA_CPP = "ours", "llama.cpp"
ENGINES = (OURS, LLAMA_CPP)
MODELS = ("smollm2_135m_instruct", "qwen2_5_coder_0_5b_instruct", "qwen2_5_coder_1_5b_instruct")
"""Checkpoints; llama.cpp reads the GGUF files of the same packages, in Q4_0."""
NAMES = dict(zip(MODELS, ("SmolLM2-135M", "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B"), strict=True))
DTYPES = ("float32", "bfloat16", "int4")
SHOWN = {"float32": "fp32", "bfloat16": "bf16", "int4": "4 bits", "q4_0": "Q4_0"}
ROWS = (1, 3, 6, 12, 48, 128)
CONTEXTS = (192, 640)
"""Of cells. Probes have other rows, but for decoding's one, and other contexts (`board_calibrator`)."""
DECODE_ROWS, PROMPT_ROWS = 1, 128
"""Rows of a pass that decodes, and of one that reads a prompt, whose last token alone has logits."""
SHARE = 3
"""One in so many streamed cells is measured by default."""


@dataclass(frozen=True, slots=True)
class CellGroup:
    """Cells that are measured together, in turns with the probes that calibrate them.

    Attributes:
        engine: `ours` or `llama.cpp`.
        model: one of `MODELS`.
        dtype: one of `DTYPES`; `q4_0` for llama.cpp.
        streamed: whether layers are read from disk in each pass.
    """

    engine: str
    model: str
    dtype: str
    streamed: bool = False

    @property
    def id(self) -> str:
        """Its name in files."""
        return "-".join((self.engine, self.model, self.dtype, "streamed" if self.streamed else "resident"))


@dataclass(frozen=True, slots=True)
class MachineCell:
    """One pass: rows after a context."""

    group: CellGroup
    rows: int
    context: int

    @property
    def id(self) -> str:
        """Its name in tables."""
        return f"{self.group.id}-{self.rows}-{self.context}"

    @property
    def last_only(self) -> bool:
        """Whether logits are computed for the last token alone; llama.cpp computes no others."""
        return self.group.engine == LLAMA_CPP or self.rows == PROMPT_ROWS


def groups(engines: Sequence[str], models: Sequence[str], dtypes: Sequence[str]) -> list[CellGroup]:
    """All groups; those that share kernels follow one another.

    Raises:
        InputError: an engine, model or dtype that there is not.
    """
    for kind, given, known in (
        ("engine", engines, ENGINES),
        ("model", models, MODELS),
        ("dtype", dtypes, DTYPES),
    ):
        for name in given:
            if name not in known:
                raise InputError(unknown(kind, name, known))
    ours = product(dtypes, (False, True), models) if OURS in engines else ()
    found = [CellGroup(OURS, model, dtype, streamed) for dtype, streamed, model in ours]
    peers = models if LLAMA_CPP in engines else ()
    return [*found, *(CellGroup(LLAMA_CPP, model, "q4_0") for model in peers)]


def in_turns(found: Sequence[CellGroup]) -> list[list[CellGroup]]:
    """Groups that are measured together: each of ours alone, all of llama.cpp's in turns.

    Ours are predicted from probes that are timed beside them, llama.cpp's models from one another.
    """
    peers = [group for group in found if group.engine == LLAMA_CPP]
    ours = [[group] for group in found if group.engine != LLAMA_CPP]
    return [*ours, peers] if peers else ours


def cells_of(group: CellGroup, every: bool) -> list[MachineCell]:
    """A group's cells; of streamed ones a fixed third, which rotates from group to group, unless `every`."""
    cells = [MachineCell(group, rows, context) for context, rows in product(CONTEXTS, ROWS)]
    if every or not group.streamed:
        return cells
    first = (DTYPES.index(group.dtype) + MODELS.index(group.model)) % SHARE
    return cells[first::SHARE]


def all_cells(found: Sequence[CellGroup], every: bool) -> Iterator[MachineCell]:
    """The cells of several groups."""
    for group in found:
        yield from cells_of(group, every)
