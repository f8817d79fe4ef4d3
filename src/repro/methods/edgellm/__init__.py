"""EdgeLLM (IEEE TMC 2024): drafts beside a target that is streamed, until their confidence falls.

| section of the paper | where |
|---|---|
| III-B, branch navigation (Eqs. 1, 2) | `edgellm._navigate`, `_branches` |
| III-B, branch decoder: by a mask, or a batch | `models/runtime/session.py`, `models/tokens/kv_slots.py` |
| III-C, confidence T_c, fallback (Eq. 3) | `edgellm.tree_confidence`, `_draft`, `_adapt` with `UPDATES` |
| III-D, provisional generation | `edgellm._verify`; `wait_for_gap` keeps the draft out of the target's way |
| III-B, the verified sequence, rolling back | `models/tokens/acceptance.py` |
| III-D, keeping what was drafted meanwhile | `TokenTree.below` of `models/tokens/tree.py` |
| III-D, layers read ahead, the bound of memory | `edgellm.places`, `models/runtime/placement.py` |

Its baselines are in `methods/speculative` (`sp`, `bld`, `specinfer`), `methods/plain` and `methods/sti`. What
the paper leaves open stands in docs/edgellm.md.
"""
