"""Sequences and trees of tokens: prefixes, acceptance, sampling, slots of a key-value cache."""
