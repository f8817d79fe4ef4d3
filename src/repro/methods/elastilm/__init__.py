"""ElastiLM: one model at many sizes and prompts at many lengths, chosen by a tiny model.

| section of the paper | where |
|---|---|
| 2.2 and 3.1, SLOs, and what meets one (Eq. 1) | `methods/serving`: `slo.py`, `service_profile.py` |
| 3.2, importance of units (Eq. 2) | `unit_importance` |
| 3.2, reordered units, sub-models as views | `submodels` |
| 3.2, levels and anchor layers, by their losses | `elastic_levels`; `elastic_profile` has the losses |
| 3.2, recovery by adapters | `lora`; order and adapters together in `elastication` |
| 3.2, switching while serving | `methods/serving/switching.py` (`Pointer`) |
| 3.3, the dual-head tiny model (TLM) | `dual_head_network`; its heads `score_head`, `tlm` (decision) |
| 3.3, what it reads and where its heads are | `word_pieces`, `token_spans`, `trained_heads` |
| 3.3, the chosen tokens; the check at run time | `methods/serving`: `shortening.py`, `deciders.py` |
| 3.2, training | `workshop/training`: `elasticize`, `train_lora` |
| 3.3, training, its labels | `workshop/training`: `train_tlm`, `score_head`, `decision_head` |
| 4, ElasticLinear | `submodels` (`JoinedLinear`, `TransposedLinear`) |
| the whole, with its costs; a request's steps | `service`, `uneven_cost`; `scenarios/serving/scenario.py` |

What the paper leaves open stands in docs/elastilm.md.
"""
