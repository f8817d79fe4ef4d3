"""Heads that score tokens of a prompt and decide how a request is served."""
