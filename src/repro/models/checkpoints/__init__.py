"""Checkpoints: locating, downloading, converting, validating and reading their files."""
