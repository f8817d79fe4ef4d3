"""Measured costs: layers of invented shapes are timed, and a device and an engine are written."""
