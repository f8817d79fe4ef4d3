"""Ghidorah: token tree verification divided between two processors."""
