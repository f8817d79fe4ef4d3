"""The decoder: configuration, layers, attention, KV cache and weights."""
