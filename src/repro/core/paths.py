"""Paths of the checkout and of its `conf/` folder.

Owns these two paths. Must not know what the folders contain.
"""

from __future__ import annotations

from pathlib import Path

from repro.core.errors import InputError


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
