"""LEVER: token trees by gain per second for a target streamed from flash, pruned while verified.

| section of the paper | module |
|---|---|
| 4.2, gain: acceptance from the draft's probability and its reliability | `token_gain` |
| 4.2, cost of drafting and verifying, by shape | `latency_profile` |
| 4.2, Algorithm 1, and 4.4, its batches on CPU and NPU | `greedy_tree` |
| 4.3, the predictor after a middle layer (Eqs. 7 to 10) | `exit_predictor`, its scores in `exit_scores` |
| 4.3, which branches are pruned (Eq. 11, safeguards) | `pruning` |
| 4.3 and 4.4, a verification with pruning and projection on demand | `sparing_verifier` |
| the whole | `lever` |
| 4.3, training of the predictor | `workshop/training/train_predictor.py` |

What the paper leaves open stands in docs/lever.md.
"""
