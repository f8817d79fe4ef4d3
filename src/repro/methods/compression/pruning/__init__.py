"""Compressions that remove layers, heads or neurons."""
