"""STI (Guo et al., ASPLOS 2023), EdgeLLM's baseline: the target streamed in shards of several bit widths.

| part of the paper | module |
|---|---|
| shards of layers, and their rounding | `models/quantization/dictionary_rounding.py` |
| importance of shards | `shard_rank` |
| planning of widths and of the preload buffer | `shard_plan` |
| the model that streams by a plan | `sharded_model` |
"""
