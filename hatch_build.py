"""The build of the distribution `repro`: data of the checkout goes into the package, and the commit with it.

A wheel made from the checkout or its git address has all of `assets/`. The sdist lacks what pyproject.toml
excludes from it, which the distribution `repro-assets` brings, and so does a wheel made from the sdist.
"""

import json
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DATA = ("conf", "assets", "CITATION.cff")
BUILT = "built_from.json"  # as in core/version.py


class Data(BuildHookInterface):  # type: ignore[type-arg]
    """Adds files; an editable installation reads them where they are."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if version == "editable":
            return
        root, wheel = Path(self.root), self.target_name == "wheel"
        package, included = "repro" if wheel else "src/repro", build_data["force_include"]
        if wheel:
            included |= {str(root / name): f"{package}/{name}" for name in DATA}
        commit, dirty = runpy.run_path(str(root / "src/repro/core/version.py"))["git_state"](root)
        if commit is not None:  # else this is an unpacked sdist, which has the file
            noted = Path(self.directory) / BUILT
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(json.dumps({"commit": commit, "dirty": dirty}), encoding="utf-8")
            included[str(noted)] = f"{package}/{BUILT}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the note of the commit, which lay beside the archive."""
        (Path(artifact_path).parent / BUILT).unlink(missing_ok=True)
