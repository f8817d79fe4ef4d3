"""Encoders that read a prompt, and heads on top of them."""
