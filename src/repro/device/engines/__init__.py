"""Engines: how programs use devices, and the files that say so."""
