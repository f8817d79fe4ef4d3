"""Looking into a model: hooks, outliers, importance, likelihoods."""
