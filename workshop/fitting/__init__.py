"""Fits of devices and engines to published measurements, with their errors on what they did not see.

From `conf/fit` and the published values of `conf/reference`, by running the emulator, in some ten minutes.
"""
