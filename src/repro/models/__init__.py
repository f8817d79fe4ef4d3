"""Language models that compute for real, and what computing costs."""
