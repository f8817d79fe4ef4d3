"""Timings: decoding, streaming, start, sweeps of many cells, and pairs of real models beside their peers."""
