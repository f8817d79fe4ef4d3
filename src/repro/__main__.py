"""`python -m repro`."""

from repro.run import main

main()
