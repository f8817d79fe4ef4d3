"""EdgeLLM (IEEE TMC 2024): drafts beside a target that is streamed, until their confidence falls.

| section of the paper | in `edgellm` |
|---|---|
| III-B, branch navigation (Eqs. 1, 2) | `_navigate`, `_branches` |
| III-B, branches as a batch | `verification`; `models/runtime/verifier.py` |
| III-C, fallback to verification (Eq. 3) | `_draft`, `_adapt`, `tree_confidence` |
| III-D, provisional generation | `_verify`, and `gap`, which keeps the draft out of the target's way |

Its baselines are in `methods/speculative` (`sp`, `bld`, `nav`), `methods/plain` and `methods/sti`. What the
paper leaves open stands in docs/edgellm.md.
"""
