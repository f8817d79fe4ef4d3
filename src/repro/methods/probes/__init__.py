"""Looks at what goes on within a model while it reads, one a file."""
