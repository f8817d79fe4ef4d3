"""The emulator held against measurements: of others, and of this machine.

The pages in `results/validation`: from committed cells and published rows in minutes; what is measured here,
from this machine and a checkpoint, in twenty minutes.
"""
