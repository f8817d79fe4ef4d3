"""mllm-NPU (arXiv 2407.05858): prompts in chunks, prefilled out of order on an NPU and the CPU.

| section of the paper | module |
|---|---|
| 3.1, which op runs on which processor | `subgraphs` |
| 3.1, profiling (`ChunkProfile`); the whole | `mllm_npu` |
| 3.2, chunks that share graphs | `subgraphs` (their costs), `mllm_npu` (building them) |
| 3.3, Eq. 1, the arithmetic of a shadowed linear | `models/quantization/w8a8.py` |
| 3.3, which linears have a shadow; thresholds, importance | `shadow`; `models/analysis/activations.py` |
| 3.3, hot channels | `models/analysis/outlier_channels.py`; costs in `subgraphs` |
| 3.4, dependencies (Eqs. 2, 3) | `subgraphs` |
| 3.4, running them (Eq. 4), choosing by C (Eq. 6; in version 2 Eq. 5) | `mllm_npu.run`, `scheduling` |
| 4, equivalent shapes, the NPU's window of memory | `subgraphs` (`Layout.linear`, `beyond`) |
| 4.1, the engines it is compared with | `engines` |

Decoding is `methods/plain/autoregressive.py`. What the paper leaves open stands in docs/mllm_npu.md.
"""
