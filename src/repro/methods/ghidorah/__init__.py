"""Ghidorah (arXiv 2505.23219): Medusa's drafts verified by two processors that share memory.

| section of the paper | module |
|---|---|
| III-B, columns and attention on two processors | `partition` (the work), `division` (when it runs) |
| III-B, the same for real | `tensor_parallel`, `divided_linear` |
| III-B, sparse attention within a tree | `tree_kernels`, `tree_loops`, timed by `tree_attention` |
| III-C, profiling and contention | `pass_profiling`, `contention` |
| III-C, trees by width (ARCA) | `verification_tree` in `methods/speculative/drafting`, as for Medusa |
| the whole | `ghidorah`; its baseline Medusa+EM `medusa_em` |

What the paper leaves open stands in docs/ghidorah.md.
"""
