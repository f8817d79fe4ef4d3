"""What drafts beside a draft model: EAGLE and Medusa heads, early exits, calibrated drafts."""
