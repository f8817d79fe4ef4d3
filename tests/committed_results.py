"""Committed results and the files of numbers beneath them, read without repro: JSON, CSV and YAML alone.

Knows where files are, their units, and that an engine's numbers replace a device's. Knows no cost or method.
"""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS, CONF = ROOT / "results", ROOT / "conf"

UNITS = {"TOP/s": 1e12, "TFLOP/s": 1e12, "GFLOP/s": 1e9, "GB/s": 1e9, "GB": 1e9, "ms": 1e-3, "us": 1e-6}
BITS = {"fp16": 16, "int8": 8, "q4_0": 4.5, "gptq4": 4 + 20 / 128}

Rounds = dict[str, np.ndarray]


def cells(table: str) -> list[dict[str, Any]]:
    """The cells of a table under its labels, finished ones alone."""
    lines = (RESULTS / table / "members.jsonl").read_text(encoding="utf-8").splitlines()
    found = [{**records()[member["key"]], **member} for member in map(json.loads, lines)]
    return [cell for cell in found if cell["status"] == "done"]


def smallest_tables() -> list[str]:
    """The table with the fewest cells in each folder of results: a sample with one of each paper."""
    counts: dict[str, list[tuple[int, str]]] = {}
    for path in RESULTS.rglob("members.jsonl"):
        table = path.parent.relative_to(RESULTS).as_posix()
        cells_there = len(path.read_text(encoding="utf-8").splitlines())
        counts.setdefault(table.partition("/")[0], []).append((cells_there, table))
    return [min(tables)[1] for tables in counts.values()]


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects of lines of records, each behind its form and its hash."""
    return (json.loads(line.split(" ", 2)[2]) for line in lines)


@cache
def _lines() -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted((RESULTS / "records").glob("*.jsonl"))]
    return [content for text in texts for content in _objects(text.splitlines())]


@cache
def records() -> dict[str, dict[str, Any]]:
    """All cells by key, with the names of the parts of their provenance."""
    return {content["cell"]: content for content in _lines() if "cell" in content}


@cache
def parts() -> dict[str, Any]:
    """The parts of provenance that cells have in common, by name."""
    return {content["part"]: content["value"] for content in _lines() if "part" in content}


@cache
def _stored(path: Path) -> dict[str, Rounds]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        found = [content for content in _objects(lines) if "rounds" in content]
    return {line["rounds"]: {n: np.array(v) for n, v in line["columns"].items()} for line in found}


def rounds(table: str) -> dict[str, Rounds]:
    """The rounds of a table's cells by key; they lie with their paper."""
    wanted, found = {cell["key"]: cell["details"] for cell in cells(table)}, {}
    own = RESULTS / "records" / f"{table.partition('/')[0]}.details.xz"
    for path in [own, *sorted(p for p in own.parent.glob("*.details.xz") if p != own)]:
        if path.exists() and wanted.keys() - found.keys():
            stored = _stored(path)
            found |= {key: stored[name] for key, name in wanted.items() if name in stored}
    assert wanted.keys() == found.keys(), f"{len(wanted) - len(found)} cells of {table} have no rounds"
    return found


@cache
def printed(table: str) -> dict[tuple[str, str], float]:
    """The table's own figures by row and column."""
    with (RESULTS / table / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["id"], row["column"]): float(row["ours"]) for row in rows if row["ours"]}


@cache
def line(table: str, row: str) -> dict[str, str]:
    """One line of a table of claims."""
    with (RESULTS / table / "table.csv").open(encoding="utf-8", newline="") as file:
        return next(found for found in csv.DictReader(file) if found["id"] == row)


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def model(name: str) -> dict[str, float]:
    """A billed model by its display name: the numbers of its shape, and `bits` of a stored weight."""
    for path in sorted((CONF / "model").glob("*.yaml")):
        found = _read(path)
        shapes = [p["shape"] for p in found.get("defaults", ()) if isinstance(p, dict) and "shape" in p]
        if found.get("name") == name and shapes:
            shape = _read(CONF / "model" / "shape" / f"{shapes[0]}.yaml")
            return {**shape, "bits": BITS[found["precision"]]}
    raise LookupError(name)


@cache
def machine(name: str, engine: str = "") -> dict[str, Any]:
    """A device by its display name as an engine uses it (its own by default), in SI units."""
    devices = (_read(path) for path in sorted((CONF / "device").glob("*.yaml")))
    device = next(found for found in devices if found["name"] == name)
    own, chain = engine or device["engine"], list[Any]()
    while own:
        chain.insert(0, _read(CONF / "engine" / f"{own}.yaml"))
        own = chain[0].get("extends")
    for part in chain:
        for key in (device["soc"], device["name"]):
            device = _over(device, (part.get("devices") or {}).get(key) or {})
        device |= {key: part[key] for key in ("main", "verifies") if key in part}
    found = _si(device)
    assert isinstance(found, dict)
    return found


def _over(below: Any, above: Any) -> Any:
    if not isinstance(above, dict) or not isinstance(below, dict) or {"value", "points"} & {*above, *below}:
        return above
    merged = {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}
    if "rate" in above:  # what is reached replaces the peak and the share of it
        merged["peak"], merged["efficiency"] = above["rate"], above.get("efficiency", {"value": 1.0})
    return merged


def _si(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    factor = UNITS.get(part.get("unit", ""), 1)
    if "value" in part:
        return part["value"] * factor if isinstance(part["value"], (int, float)) else part["value"]
    if "points" in part:
        return [(x, y * factor) for x, y in part["points"]]
    return {key: _si(value) for key, value in part.items()}


def at(curve: Any, x: float) -> float:
    """A number, or a curve's value at `x`."""
    return float(np.interp(x, *zip(*curve, strict=True))) if isinstance(curve, list) else float(curve)


def layer_weights(shape: dict[str, float]) -> float:
    """Weights of a decoder layer: attention, twice with an encoder, and two or three matrices of its MLP."""
    attention = shape["hidden"] * shape["head_dim"] * (2 * shape["heads"] + 2 * shape["kv_heads"])
    mlp = (3 if shape.get("gated", True) else 2) * shape["hidden"] * shape["intermediate"]
    return attention * (2 if shape.get("encoder") else 1) + mlp


def geometric_mean(ratios: Any) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(np.array(ratios, float)))))
