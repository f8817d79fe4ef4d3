"""Drafting without a plain draft model: EAGLE and Medusa heads, early exit, calibrated drafts."""
