"""Schema of an experiment's `table:` section."""
