"""LEVER: token trees for a target that is read from flash."""
