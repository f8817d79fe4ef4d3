"""Basics without language models: errors, the component registry, typed configuration, folders."""
