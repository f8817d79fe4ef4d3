"""Cells run again on drawn machines, one line of figures for each, so that an interrupted run goes on.

Owns how a record's configuration becomes that of a replay. Must not know tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.device.engines.draws import drawn
from repro.device.engines.engine_file import device_in_use
from repro.records.record import Record
from repro.scenarios.registry import made

ENGINE = {"name": "drawn", "processors": {}}
"""An engine that adds nothing: a drawn description has the numbers of the engine already."""

Figures = Mapping[str, float]


def reads_texts(record: Record) -> bool:
    """Whether a cell answers prompts of a dataset: it is not cheap, and its decisions may depend on costs."""
    config = record.provenance.config
    return config.get("service") is None and config["target"]["checkpoint"] is not None


@dataclass(frozen=True)
class Replayed:
    """How a cell is run again.

    Attributes:
        draw: which draw of its machine; None for the machine as it is.
        prompts: at most so many of its prompts.
        data_dir: a folder of datasets, or None.
    """

    draw: int | None
    prompts: int
    data_dir: str | None

    def config(self, record: Record) -> dict[str, Any]:
        """The configuration of the replay."""
        config = {**record.provenance.config, "data_dir": self.data_dir}
        if reads_texts(record):
            config["prompts"] = min(self.prompts, config["prompts"])
        if self.draw is not None:
            config |= {"device": drawn(device_in_use(record.provenance.config), self.draw), "engine": ENGINE}
        return config


class ReplayFile:
    """Figures of replays by the keys of their cells, in a file that grows by one line for each."""

    def __init__(self, path: Path) -> None:
        """Read what is known; a last line that a killed writer left unfinished is dropped."""
        self.path = path
        self.known: dict[str, Figures] = {}
        self.computed = 0
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):
            path.write_text("".join(whole), encoding="utf-8")
        for line in map(json.loads, whole):
            self.known[line["key"]] = line["figures"]

    def replay(self, record: Record, how: Replayed) -> Figures:
        """The figures of a record's cell in a replay."""
        return self.figures(how.config(record))

    def figures(self, config: Mapping[str, Any]) -> Figures:
        """A cell's figures that are numbers, computed unless they are known."""
        cell = made(config)
        if cell.key not in self.known:
            values = cell.run(_silent).record.values
            found = {n: float(v) for n, v in values.items() if isinstance(v, int | float)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": cell.key, "figures": found}) + "\n")
            self.known[cell.key] = found
            self.computed += 1
        return self.known[cell.key]


def _silent(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""
