"""Runs in wandb: one for each cell and one for each sweep, offline unless asked otherwise."""
