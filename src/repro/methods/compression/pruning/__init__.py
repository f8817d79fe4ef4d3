"""Compressions that leave out layers, heads or neurons."""
