"""Compare the figures of two folders of results, value by value.

python studies/compare_tables.py OLD NEW

A value is found by its table, row and column. Equal are those with the same figure, interval, published
value, ratio, reference and marks (apart from `older`). Values that are different, gone or fresh are printed,
and the number of each. OLD may have the older layout (`tables/<name>.csv`). The exit status is 1 unless all
are equal.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

Place = tuple[str, str, str, str]
"""Table, id of the row (or its name, of a value beside the table), column, and number among its equals."""

COMPARED = (
    *("ours", "ours_low", "ours_high", "spread_low", "spread_high", "published_low", "published_high"),
    *("unit", "ratio", "reference", "marks"),
)
LATER = {"older"}
"""Marks that depend on when a table was built."""


def tables(root: Path) -> dict[str, Path]:
    """The CSV files of a folder of results by table."""
    older = root / "tables"
    if not older.is_dir():
        paths = root.rglob("table.csv")
        return {path.parent.relative_to(root).as_posix(): path for path in paths if "@" not in str(path)}
    names = {path.relative_to(older).with_suffix("").as_posix(): path for path in older.rglob("*.csv")}
    renamed = {name.removesuffix("_errors") + "/errors": p for name, p in names.items() if "_errors" in name}
    kept = {name: path for name, path in names.items() if "_errors" not in name}
    return {name: path for name, path in (kept | renamed).items() if not name.endswith(".timeline")}


def values(root: Path) -> dict[Place, dict[str, str]]:
    """Every line of every table, by its place."""
    found: dict[Place, dict[str, str]] = {}
    for table, path in sorted(tables(root).items()):
        seen: Counter[tuple[str, str]] = Counter()
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                where = (line.get("id") or line.get("row", ""), line.get("column", ""))
                found[(table, *where, str(seen[where]))] = content(line)
                seen[where] += 1
    return found


def content(line: Mapping[str, str]) -> dict[str, str]:
    """What must be equal of a line."""
    compared = {name: line.get(name, "") for name in COMPARED}
    return compared | {"marks": " ".join(m for m in compared["marks"].split() if m not in LATER)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args(arguments)
    old, new = values(given.old), values(given.new)
    tally = Counter({"equal": 0, "different": 0, "gone": 0, "fresh": 0})
    for place in dict.fromkeys([*old, *new]):
        before, after = old.get(place), new.get(place)
        state = "equal" if before == after else "fresh" if not before else "different" if after else "gone"
        tally[state] += 1
        if state == "different" and before and after:
            changes = [f"{n} {before[n]!r} -> {after[n]!r}" for n in COMPARED if before[n] != after[n]]
            print(f"different: {' | '.join(place[:3])}: {'; '.join(changes)}")
        elif state != "equal":
            print(f"{state}: {' | '.join(place[:3])}")
    print(", ".join(f"{count} {state}" for state, count in tally.items()))
    return int(tally.total() != tally["equal"])


if __name__ == "__main__":
    sys.exit(main())
