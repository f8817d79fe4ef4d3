"""Decoding without a draft."""
