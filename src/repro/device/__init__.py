"""Devices, emulated or local: ops, clocks, costs, memory and traces."""
