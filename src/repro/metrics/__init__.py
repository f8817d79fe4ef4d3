"""Metrics on texts, tokens and answers, registered by name and computed with `evaluate`."""
