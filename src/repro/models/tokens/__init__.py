"""Token sequences and trees: prefixes, acceptance, sampling, KV cache slots."""
