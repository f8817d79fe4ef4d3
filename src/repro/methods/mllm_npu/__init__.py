"""mllm-NPU: chunked prefill on an NPU, and its baseline engines."""
