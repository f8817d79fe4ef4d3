"""Encoders that look at a prompt, and heads on them."""
