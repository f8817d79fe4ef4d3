"""Confidence intervals of figures, from the lines of detail that a cell stored."""
