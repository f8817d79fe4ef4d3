"""Renamed and removed settings, for error messages that say what to write instead.

Owns the lists, which docs/changes.md explains. Must not know Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable

from repro.core.errors import InputError

RENAMED = {
    "calibration": "calibration_prompts",
    "match": "calibrate_draft_to",
    "native": "draft_calibration",
    "workload": "setup",
}
"""New names of settings and config groups, by old name."""

GONE = {
    "ablation": "the settings of the method themselves, such as method=edgellm method.navigation=false",
    "method_preset": "the settings of the method themselves, such as method=edgellm method.navigation=false",
    "objective": "both shares, such as app.ttft=0.6 app.tpot=0.8",
    "pair": "method=mlc_gpu model@target=gemma_2b_int8",
}
"""What to write instead of config groups that are no more."""

LAUNCHERS = {
    "basic": "hydra/launcher=cells, the default",
    "joblib": "hydra/launcher=dask hydra.launcher.workers=4",
    "ray": "hydra/launcher=dask; a cluster that is there is joined with hydra.launcher.address=tcp://HOST:8786",
    "submitit_local": "hydra/launcher=dask hydra.launcher.workers=4",
    "submitit_slurm": "hydra/launcher=dask hydra.launcher.queue=slurm hydra.launcher.workers=8",
}
"""What to write instead of launchers that are no more."""


def renamed(name: str) -> str | None:
    """The error message for a setting that was renamed or removed; None for any other."""
    if name in GONE:
        return f"there is no group {name!r} any more; write {GONE[name]} (docs/changes.md)"
    if name not in RENAMED:
        return None
    return f"the setting {name!r} is called {RENAMED[name]!r} now; docs/changes.md lists what was renamed"


def check_overrides(overrides: Iterable[str]) -> None:
    """InputError for a command-line override that uses a name that was renamed or removed."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "hydra/launcher" and value in LAUNCHERS:
            raise InputError(f"{override} is no more; write {LAUNCHERS[value]} (docs/sweeps.md)")
        name = override.lstrip("+~").partition("=")[0].partition("@")[0].partition(".")[0]
        if "=" in override and (sentence := renamed(name)):
            raise InputError(sentence)
