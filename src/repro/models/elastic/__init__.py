"""Elastic models: sub-models over ordered units, their LoRA adapters, importance and costs."""
