"""Forward passes over token sequences, computed or read from a cache of logits."""
