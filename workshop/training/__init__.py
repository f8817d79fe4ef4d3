"""Training of drafts, heads, adapters and predictors; each command is `python -m workshop.training.NAME`."""
