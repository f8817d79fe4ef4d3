"""Settings renamed in the configurations of committed records; their keys stay, since no key has these names.

`match`, `native` and `calibration` got the names below; `studies/move/sample.py` reads older ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
