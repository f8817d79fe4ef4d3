"""LEVER: token trees for a target streamed from flash."""
