"""Elastic services that serve a trace, one per file."""
