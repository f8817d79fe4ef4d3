"""Investigations beside the product, each with its result in README.md, and the list of faults.

From committed cells, published values and the emulator, in minutes each.
"""
