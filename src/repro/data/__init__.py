"""Datasets and prompts: examples from a folder, the hub or a package, and prompt templates."""

from repro.data.config import DatasetConfig, parse, read_config
from repro.data.prompts import Continuation, Prompt, prompts
from repro.data.rows import Rows, digest, load_rows, rows_after, rows_in_use

__all__ = [
    "Continuation",
    "DatasetConfig",
    "Prompt",
    "Rows",
    "digest",
    "load_rows",
    "parse",
    "prompts",
    "read_config",
    "rows_after",
    "rows_in_use",
]
