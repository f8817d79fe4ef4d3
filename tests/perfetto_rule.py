"""Perfetto's rule for slices of a lane, which its slice_tracker.cc applies to complete events.

Its `trace_processor` is no part of the package `perfetto`, which downloads it on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any


def dropped(events: Iterable[dict[str, Any]]) -> list[str]:
    """Names of the slices that begin inside a slice of their lane and end after it: Perfetto drops these."""
    slices = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["pid"], e["tid"], e["ts"]))
    gone = []
    for _, lane in groupby(slices, key=lambda e: (e["pid"], e["tid"])):
        around: list[int] = []
        for event in lane:
            start, end = event["ts"], event["ts"] + event["dur"]
            while around and around[-1] <= start:
                around.pop()
            if around and start < around[-1] < end:
                gone.append(event["name"])
            else:
                around.append(end)
    return gone
