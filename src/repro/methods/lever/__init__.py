"""LEVER: token trees by gain per second for a target streamed from flash, pruned while verified.

| section of the paper | module |
|---|---|
| 4.2, Calibrate and r (Eq. 3) | `token_gain` |
| 4.2, costs of drafting and verifying, by shape | `latency_profile` |
| 4.2, Algorithm 1 (Eqs. 1, 2, 4 to 6), and 4.4, its batches on CPU and NPU | `greedy_tree` |
| 4.3, the predictor after a middle layer (Eq. 7) | `exit_predictor` |
| 4.3, its training (Eqs. 8 to 10) | `workshop/training/train_predictor.py` |
| 4.3, which branches are pruned (Eq. 11, safeguards) | `pruning` |
| 4.3 and 4.4, a verification with pruning and projection on demand | `sparing_verifier` |
| 4.4, the processors, and the whole | `lever` (`SCHEDULES`, `PROJECTIONS`) |

The hook in mid-pass is `models/runtime/arrangement.py`, where dropped rows leave the pass and its
cost. Its baselines are in `methods/plain` (`flash_ar`), in `methods/speculative` (`chain_sd`, `opt_tree`,
`specinfer`) and in `methods/edgellm`. What the paper leaves open stands in docs/lever.md.
"""
