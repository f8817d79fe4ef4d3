"""Packs of observations: which there are, computing them in resumable pieces, and checking them."""
