"""Packs of observations: which there are, computing them in resumable pieces, and checking them.

From checkpoints and the datasets' prompts (`conf/observations.yaml`), in some ten minutes to hours a pack.
"""
