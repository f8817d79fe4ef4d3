"""The engines of mllm-NPU's latency table: fits in closed form, and by the emulator."""
