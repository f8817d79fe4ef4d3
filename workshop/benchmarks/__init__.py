"""Timings: decoding, streaming, start, sweeps of many cells, and pairs of real models beside their peers.

From this machine and checkpoints, in minutes each; the pairs of `results/real` in three hours, resumable.
"""
