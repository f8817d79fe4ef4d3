"""Elastic services that serve a trace."""
