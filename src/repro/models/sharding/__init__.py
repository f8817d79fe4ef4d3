"""Vertical shards of decoder layers, their rounding and importance (STI)."""
