"""The decoder: configuration, layers, attention, cache and weights."""
