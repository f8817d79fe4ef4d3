"""Trainers of drafts, EAGLE and Medusa heads, early-exit predictors and adapters."""
