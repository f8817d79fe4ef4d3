"""The command `repro`, which is `python -m repro` too: a verb, or without one Hydra's run.

    repro VERB ...            one of `VERBS`; `repro VERB --help`
    repro GROUP=NAME ...      a run or, with -m, a sweep; `repro --help`
    repro --version           the release and the commit

Owns which module has which verb.
"""

import sys
from importlib import import_module

from repro.core.output import prepare_process

VERBS = {
    "table": "repro.commands.table",
    "fetch": "repro.commands.fetch",
    "device": "repro.commands.device",
    "calibrate": "repro.commands.calibrate",
    "errors": "repro.commands.errors",
    "cells": "repro.commands.cells",
    "list": "repro.experiments.guide.listing",
    "show": "repro.show",
    "compare": "repro.compare",
    "check": "repro.check",
}
"""The module of each verb; its `main` takes the arguments and returns the exit status."""


def main() -> None:
    """The command."""
    prepare_process()
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if first in VERBS:
        sys.exit(import_module(VERBS[first]).main(sys.argv[2:]))
    if first == "--version":
        from repro.core.version import version

        print(f"repro {version()}")
        return
    if first.isalpha():
        from repro.core.registry import unknown

        print(f"error: {unknown('verb', first, VERBS)}; a setting is NAME=VALUE", file=sys.stderr)
        sys.exit(2)
    from repro.experiments.cli import main as run

    run()


if __name__ == "__main__":
    main()
