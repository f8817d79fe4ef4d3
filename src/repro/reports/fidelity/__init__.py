"""Errors of each paper, and one page over all of them, read from the tables' CSV files."""
