"""Fits of devices and engines to published measurements, with their errors on what they did not see."""
