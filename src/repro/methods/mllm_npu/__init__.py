"""mllm-NPU: chunked prefill on an NPU, and the engines it is compared with."""
