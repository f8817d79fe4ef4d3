"""mllm-NPU (arXiv 2407.05858): prompts in chunks, prefilled out of order on an NPU and the CPU.

| section of the paper | module |
|---|---|
| 3.2, chunks that share graphs | `subgraphs` (their costs), `mllm_npu` (building them) |
| 3.3, shadow execution of outliers | `shadow` (the arithmetic), `subgraphs` (its costs) |
| 3.4, out-of-order execution | `scheduling` (the policies), `mllm_npu.ChunkedPrefill` |
| 4.1, the engines it is compared with | `engines` |

What the paper leaves open stands in docs/mllm_npu.md.
"""
