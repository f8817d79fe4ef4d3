"""Layers split between two processors, and kernels for attention over token trees."""
