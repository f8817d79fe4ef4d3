"""Papers' claims and the errors of all tables, as pages."""
