"""One-off investigations, each with its result in README.md: `python -m workshop.studies.NAME`."""
