"""Paths of the checkout, of its `conf/` folder, and of such folders in other packages.

Owns these paths. Must not know what the folders contain.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from repro.core.errors import InputError

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


def conf_folders() -> list[Path]:
    """The folder `conf/` of the checkout, then those of packages of the entry point group `repro.conf`.

    Raises:
        InputError: as `project_root`.
    """
    return [conf_dir(), *_folders_of_packages()]


@cache
def _folders_of_packages() -> tuple[Path, ...]:
    specs = (find_spec(entry.value) for entry in entry_points(group=CONF_ENTRY_POINTS))
    return tuple(Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ())
