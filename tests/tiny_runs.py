"""Whole runs of a method on the toy machine, for tests in this and in other processes."""

from __future__ import annotations

from repro.device.emulated import EmulatedDevice
from repro.device.timeline import chrome
from repro.methods.base import Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.scenarios.generation.scenario import timeline_parts
from tiny import MODEL_COST, TableNetwork, opened, toy


def edgellm_timeline() -> str:
    """A run with tree, provisional drafting, streaming and contention; printed by the other process too."""
    device = EmulatedDevice(toy())
    networks = {
        "target": TableNetwork(10, seed=1, sharpness=2),
        "draft": TableNetwork(10, seed=1, sharpness=1.5),
    }
    request = Request("r", (1, 2, 3), 24)
    method = EdgeLLM(limit=5, choices=3)
    sessions = opened(method, device, networks, dict.fromkeys(networks, MODEL_COST))
    for session in sessions.values():
        session.start(request.prefix)
    made = device.play(method.serve(request, device, sessions))
    parts = [*timeline_parts([made], sessions)]
    return chrome(device.trace, "edgellm", parts, device.memory.history)
