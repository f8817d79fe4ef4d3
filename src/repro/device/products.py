"""Products: phones and boards by the names that people type, each a line of a `device/products.csv`.

Owns the columns and what a line says over its chip's device file. Must not know what a chip computes, nor
which device files there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval

from repro.core.named_lines import named_lines
from repro.core.paths import conf_entries

PRODUCTS_FILE = "device/products.csv"
"""The table's place in a folder like `conf/`."""

PRODUCT = "product"
"""The entry of a device file that has a product's printed name beside its chip's `name`; in no key."""

BUDGETS = {
    "phone": (0.75, "three quarters of a phone's memory"),
    "tablet": (0.75, "three quarters of a tablet's memory"),
    "board": (0.9, "nine tenths of a board's memory"),
    "laptop": (0.9, "nine tenths of a laptop's memory"),
}
"""The share of the memory that models may have, by kind of product."""


@dataclass(frozen=True)
class Product:
    """A phone or a board, or another name of a chip.

    Attributes:
        name: what people type.
        product: its printed name.
        chip: the chip, as its device file is named.
        kind: what it is; a `chip` is a part number, or a board of any memory.
        memory_gb: its memory in GB; 0 leaves what the chip's file assumes.
        cooling: how it is cooled; "" where that is not known. No figure depends on it.
        source: where the line is from, as of a fact.
        note: what is to be known of it.
    """

    name: str
    product: str
    chip: str
    kind: Literal["phone", "tablet", "board", "laptop", "chip"]
    memory_gb: Annotated[float, Interval(ge=0, le=1024)] = 0.0
    cooling: Literal["", "passive", "fan"] = ""
    source: Literal["datasheet", "assumed"] = "assumed"
    note: str = ""

    @property
    def chip_file(self) -> str:
        """Name of the chip's device file."""
        return file_name(self.chip)

    @property
    def title(self) -> str:
        """It in a few words."""
        memory = f"{self.memory_gb:g} GB" if self.memory_gb else ""
        fan = "with a fan" if self.cooling == "fan" else ""
        return ", ".join(filter(None, (self.product, memory, fan, self.note)))

    @property
    def entries(self) -> dict[str, Any]:
        """What the line says over the chip's device file: the printed name, and the memory."""
        entries: dict[str, Any] = {PRODUCT: self.product}
        if self.memory_gb and self.kind in BUDGETS:
            share, reason = BUDGETS[self.kind]
            note = "; ".join(filter(None, (self.product, self.note)))
            entries["dram"] = {
                "capacity": {
                    "value": _short(self.memory_gb),
                    "unit": "GB",
                    "source": self.source,
                    "note": note,
                },
                "budget": {
                    "value": _short(share * self.memory_gb),
                    "unit": "GB",
                    "source": "assumed",
                    "note": reason,
                },
            }
        return entries


def _short(number: float) -> float | int:
    """A number as a file has it: 8 and 7.2, since keys tell 8 from 8.0."""
    return int(number) if number == int(number) else round(number, 3)


def file_name(printed_name: str) -> str:
    """A printed name as people type it and as files are named: `Galaxy S26+` is `galaxy_s26_plus`."""
    return re.sub(r"[^a-z0-9]+", "_", printed_name.lower().replace("+", " plus ")).strip("_")


def read_products(path: Path) -> dict[str, Product]:
    """The products of a file by name, and by printed name as it is typed; none where there is no file.

    Raises:
        InputError: a line is malformed.
    """
    by_name = named_lines(path, Product)
    return {**{file_name(product.product): product for product in by_name.values()}, **by_name}


def products() -> dict[str, Product]:
    """The products of all `conf/` folders, as `read_products`; the first of a name counts."""
    return conf_entries(PRODUCTS_FILE, read_products, "product")
