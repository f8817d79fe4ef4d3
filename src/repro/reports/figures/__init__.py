"""Figures of tables and timelines."""
