"""Decoding with a draft whose tokens the target verifies."""
