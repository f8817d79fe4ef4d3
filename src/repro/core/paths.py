"""Paths of the checkout, of its `conf/` folder, and of such folders in other packages.

Owns these paths. Must not know what the folders contain.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from repro.core.errors import InputError
from repro.core.packages import folders

CONF_ENTRY_POINTS = "repro.conf"
"""Entry point group of packages with YAML folders (`mine = "my_package.conf"`): devices, models and so on."""


def project_root() -> Path:
    """The checkout that this code runs from.

    Raises:
        InputError: the package was installed without its checkout, so there is no `conf/`.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "conf").is_dir():
        raise InputError(
            f"no folder 'conf' in {root}: repro runs from a clone of its repository; "
            "install it there with `pip install --editable .`"
        )
    return root


def conf_dir() -> Path:
    """The folder `conf/` of the checkout.

    Raises:
        InputError: as `project_root`.
    """
    return project_root() / "conf"


def from_home(path: str) -> str:
    """A path whose `~` or `~user` is written out; InputError if nobody of that name has a home folder."""
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise InputError(
            f"{path!r} begins with the home folder of a user who is not here; write ./{path} for such a name"
        )
    return found


def conf_folders() -> list[Path]:
    """The folder `conf/` of the checkout, then those of packages of the entry point group `repro.conf`.

    A package whose folder cannot be found is left out with a warning.

    Raises:
        InputError: as `project_root`.
    """
    return [conf_dir(), *_folders_of_packages()]


@cache
def _folders_of_packages() -> tuple[Path, ...]:
    return tuple(folders(CONF_ENTRY_POINTS))
