"""Whole runs of a method on the toy machine, for tests in this and in other processes."""

from __future__ import annotations

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.edgellm import EdgeLLM
from tiny import MODEL_COST, TableNetwork, answer, toy


def edgellm_trace() -> str:
    """A run with tree, provisional drafting, streaming and contention; printed by the other process too."""
    device = EmulatedDevice(toy())
    networks = {
        "target": TableNetwork(10, seed=1, sharpness=2),
        "draft": TableNetwork(10, seed=1, sharpness=1.5),
    }
    model_costs = dict.fromkeys(networks, MODEL_COST)
    answer(EdgeLLM(limit=5, choices=3), Request("r", (1, 2, 3), 24), device, networks, model_costs)
    return device.trace.chrome("edgellm")
