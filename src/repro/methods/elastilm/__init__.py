"""ElastiLM."""
