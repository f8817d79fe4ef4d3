"""Compressions: pruning, quantization, and the fp16 reference."""
