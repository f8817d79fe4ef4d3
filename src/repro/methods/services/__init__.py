"""Elastic language-model services as components: ElastiLM and what it is measured against, one a file."""
