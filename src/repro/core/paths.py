"""Paths of the project's data, in a checkout or an installation, and of other packages' `conf/` folders.

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
    """The folder of `conf/` and `assets/`: the checkout that this code runs from, else the installed package.

    Raises:
        InputError: neither has a `conf/`.
    """
    return _root_of(__file__)


@cache
def _root_of(module: str) -> Path:
    package = Path(module).resolve().parents[1]
    for root in (package, package.parents[1]):
        if (root / "conf").is_dir():
            return root
    raise InputError(f"no folder 'conf' in {package}: this installation is not whole; install repro again")


def in_checkout() -> bool:
    """Whether the project's folders are those of a checkout, and not of an installation."""
    return project_root() != Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The project's folder `conf/`.

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
    """The project's folder `conf/`, then those of packages of the entry point group `repro.conf`.

    A package whose folder cannot be found is left out with a warning.

    Raises:
        InputError: as `project_root`.
    """
    return [conf_dir(), *_folders_of_packages()]


@cache
def _folders_of_packages() -> tuple[Path, ...]:
    return tuple(folders(CONF_ENTRY_POINTS))
