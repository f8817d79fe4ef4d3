"""`python -m repro`."""

from repro.experiments.cli import main

main()
