"""Settings renamed in the configurations of committed records; their keys stay, since no key has these names.

    python studies/rekey/rename_settings.py

Run once, when `match`, `native` and `calibration` got the names below. A second run changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from repro.core.paths import project_root
from repro.records.record import Record, content_hash, write_atomically
from repro.records.store import Store


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration under the new names."""
    found = dict(config)
    if "match" in found:
        found["calibrate_draft_to"] = found.pop("match")
    if "native" in found:
        found["draft_calibration"] = not found.pop("native")
    if "calibration" in found:
        found["calibration_prompts"] = found.pop("calibration")
    return found


def main() -> None:
    folder = project_root() / "results" / "records"
    changed = 0
    for record in Store(folder).all():
        config = renamed(record.provenance.config)
        if config == record.provenance.config:
            continue
        provenance = replace(record.provenance, config=config, config_hash=content_hash(config))
        made: Record = replace(record, provenance=provenance)
        write_atomically(folder / f"{record.key}.json", made.to_json())
        changed += 1
    print(f"{changed} records have their settings' new names")


if __name__ == "__main__":
    main()
