"""Where the checkout lies: the folder of configuration and the folder that holds it.

Owns these two places. Must not know what is in them.
"""

from __future__ import annotations

from pathlib import Path

from repro.core.errors import InputError


def project_root() -> Path:
    """The checkout that this code runs from.

    Raises:
        InputError: the package was installed without its checkout, so that there is no `conf/` beside it.
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
