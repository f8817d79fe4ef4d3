"""Serving requests under an SLO: deciders, prompt compression, switching between model levels."""
