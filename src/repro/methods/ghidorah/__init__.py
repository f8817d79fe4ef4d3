"""Ghidorah: verification of token trees on two processors at once."""
