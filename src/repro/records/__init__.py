"""What is kept of a run: records and their provenance, identities, and what is built once."""
