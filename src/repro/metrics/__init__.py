"""Metrics on texts, tokens and answers, one `evaluate.Metric` class each, registered by name."""
