"""Runs that are written offline, and what wandb's own reader finds in them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from wandb.util import get_core_path

ROUNDS = [{"round": n, "rows": 4 - n % 2, "stop": "confidence"} for n in range(5)]


def lines(run: Path) -> list[dict[str, Any]]:
    """A run's records in their order."""
    return [json.loads(line) for line in _read(run).splitlines()]


def summary(run: Path) -> dict[str, Any]:
    """A run's state, configuration and last figures."""
    return dict(json.loads(_read(run, "--summary")))


def _read(run: Path, *flags: str) -> str:
    """What `wandb leet inspect` prints, from the program that it calls after seconds of imports."""
    (log,) = run.glob("run-*.wandb")
    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", *flags]
    command += ["--run-file", str(log), str(run.parent)]
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
