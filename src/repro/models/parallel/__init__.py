"""A layer divided between two processors, and kernels for attention over token trees."""
