"""Configurations that are lines of tables in `conf/`: a product over its chip's device file, a model's shape.

Owns what a line is in a configuration. Must not know Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from repro.device.engines.engine_file import device_files, require_chip
from repro.device.products import PRODUCTS_FILE, read_products
from repro.models.costs.public_models import MODELS_FILE, read_models

TABLES = {"device": PRODUCTS_FILE, "model": MODELS_FILE, "model/shape": MODELS_FILE}
"""The table of a group in a folder like `conf/`."""


def line_names(folder: Path, group: str) -> Iterable[str]:
    """The names that the table of a group has in a folder.

    Raises:
        InputError: a line is malformed.
    """
    if group not in TABLES:
        return ()
    return (read_products if group == "device" else read_models)(folder / TABLES[group])


def line_content(folder: Path, group: str, name: str) -> dict[str, Any] | None:
    """What a table's line of this name says as a file of its group would; `None` if there is no such line.

    Raises:
        InputError: a line is malformed, or a product's chip has no device file.
    """
    if name not in line_names(folder, group):
        return None
    path = folder / TABLES[group]
    if group == "device":
        product = read_products(path)[name]
        require_chip(product, {*device_files(), *(file.stem for file in (folder / "device").glob("*.yaml"))})
        return {"defaults": [product.chip_file, "_self_"], **product.entries}
    model = read_models(path)[name]
    if group == "model/shape":
        return model.dimensions
    parts = {"name": model.model, "checkpoint": None, "shape": None, "precision": None, "dtype": "float32"}
    return {"defaults": ["_self_", {"checkpoint": None}, {"shape": name}], **parts}
