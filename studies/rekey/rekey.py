"""Carry the committed records of c40f672 over to keys without the hash of the source code. Run once.

    python studies/rekey/rekey.py --data FOLDER

A record made before has a key that hashes the source of some hundred modules. Here each gets the key that its
configuration has now, with the inputs and versions of today, and says under which commit it was made. Nothing
is computed and no figure changes. It stops where an input is not the one that the record was made from: the
rows of a dataset have the digest that the record noted. `keys.csv` holds both keys of every record.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from repro.core.paths import conf_dir, project_root
from repro.experiments.composing import load_components
from repro.records.identity import portable
from repro.records.record import Record, content_hash, write_atomically
from repro.records.store import Store
from repro.scenarios.registry import made

HERE = Path(__file__).resolve().parent
ROWS = ("dataset", "calibration", "corpus")


def carried(record: Record, defaults: dict[str, Any], data_dir: str) -> Record:
    """A record under its new key; ValueError if the rows at hand are not those that it was made from."""
    source = record.provenance
    config = portable(defaults | dict(source.config))
    cell = made(config | {"data_dir": data_dir})
    inputs = dict(cell.inputs)
    for name, digest in source.inputs.items():
        if (name in ROWS or name.endswith("_5shot")) and inputs.get(name) != digest:
            raise ValueError(f"{record.key}: {name} was {digest}, and is {inputs.get(name)}")
    if source.clock == "wall":  # on the machine that it was measured on
        inputs["machine"] = cell.inputs["machine"] = content_hash(dict(source.host))
    place = None
    if source.trace:
        place = source.trace.partition("/")[2].replace(record.key[:12], cell.key[:12])
    provenance = replace(
        source,
        config=config,
        config_hash=content_hash(config),
        inputs=inputs,
        versions=cell.versions,
        trace=place,
        carried_over=source.commit,
    )
    return replace(record, key=cell.key, provenance=provenance)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    given = parser.parse_args()
    load_components()
    root = project_root() / "results"
    old, new = Store(root / "records"), Store(root / "records.new")
    base = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    defaults = {name: value for name, value in base.items() if name not in ("defaults", "hydra", "table")}
    keys: dict[str, str] = {}
    rows = []
    for number, record in enumerate(old.all()):
        made = carried(record, defaults, given.data)
        if other := new.get(made.key):
            print(f"{record.key[:12]} and {other.key[:12]} are one cell now: {record.experiment}")
        new.put(made, old.rounds(record.key))
        keys[record.key] = made.key
        rows.append((record.key, made.key, record.experiment, record.provenance.commit))
        if not number % 100:
            print(number, flush=True)
    for path in (root / "tables").rglob("*.cells.json"):
        listed = [each | {"key": keys[each["key"]]} for each in json.loads(path.read_text(encoding="utf-8"))]
        listed.sort(key=lambda each: json.dumps(each, sort_keys=True))
        write_atomically(path, json.dumps(listed, indent=1, sort_keys=True) + "\n")
    for path in (root / "tables").rglob("*.timeline.json"):
        text = path.read_text(encoding="utf-8")
        for before, after in keys.items():
            text = text.replace(before, after)
        write_atomically(path, text)
    with (HERE / "keys.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("old", "new", "experiment", "commit"))
        out.writerows(sorted(rows))
    print(f"{len(rows)} records carried over, {len(set(keys.values()))} keys")


if __name__ == "__main__":
    main()
