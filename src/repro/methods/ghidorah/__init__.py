"""Ghidorah (arXiv 2505.23219): Medusa's drafts verified by two processors that share memory.

| section of the paper | where |
|---|---|
| III-B, columns and attention on two processors | `partition` (the work), `division` (when it runs) |
| III-B, the same for real | `tensor_parallel`, `divided_linear` |
| III-B, sparse attention, online softmax | `tree_kernels` (`merge`), `tree_loops`, `tree_attention` |
| III-C, ARCA: the search for tree, width and shares | `ghidorah`, by passes of `pass_profiling` |
| III-C, trees | `methods/speculative/drafting`: `verification_tree.py`, `tree_replay.py` |
| III-C, widths | `WIDTHS` in `methods/speculative/medusa.py` |
| III-C, the ratio under contention | `contention` |
| IV-A, the baseline Medusa+EM | `medusa_em` |

What the paper leaves open stands in docs/ghidorah.md.
"""
