"""The workshop's tests run every night, and where what they are about has changed; a handful always runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from changed import changed_files

HERE = Path(__file__).parent
FITTED = ("conf/device/", "conf/engine/", "conf/fit/")
"""What fits write, and what studies and validation read."""
RESTS_ON = {"fitting": FITTED, "studies": FITTED, "validation": FITTED}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a part that is as before are slow, but those marked `quick`."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("quick"):
            part = item.path.relative_to(HERE).parts[0]
            places = (f"workshop/{part}/", f"tests/workshop/{part}/", *RESTS_ON.get(part, ()))
            if not any(name.startswith(places) for name in changed_files()):
                item.add_marker(pytest.mark.slow)
