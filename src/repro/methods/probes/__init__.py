"""Probes of activations and layers, one per file."""
