"""Machines: operators, clocks, costs, memory and traces, on an emulated device or the one at hand."""
