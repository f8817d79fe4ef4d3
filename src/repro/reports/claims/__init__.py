"""Pages of a paper's claims and of the prediction errors over all tables."""
