"""Records with their provenance, cell keys, and the build cache."""
