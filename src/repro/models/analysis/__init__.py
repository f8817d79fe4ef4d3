"""Model analysis: hooks, activation outliers, layer importance, likelihoods."""
