"""ElastiLM: one model at many sizes and prompts at many lengths, chosen by a tiny model.

| section of the paper | module |
|---|---|
| 3.2, importance of units (Eq. 2) | `unit_importance`, through `differentiable` |
| 3.2, reordered units, sub-models as views | `submodels`, `joined_linear` |
| 3.2, levels and anchor layers | `elastic_levels`, measured in `elastic_profile` |
| 3.2, recovery by adapters | `lora`; both together in `elastication`, `compression` |
| 3.3, the dual-head tiny model (TLM) | `dual_head_network`, `score_head`, both on a prompt `tlm` |
| 3.3, what it reads and where its heads are | `word_pieces`, `token_spans`, `trained_heads` |
| 3.2 and 3.3 as a service, with its costs | `service`, `uneven_cost` |
| 4, training | `workshop/training` (`elasticize`, `train_lora`, `train_tlm`) |

SLOs, deciders and other services are in `methods/serving`. What the paper leaves open: docs/elastilm.md.
"""
