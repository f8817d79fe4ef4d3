"""Deciding how a request is served under an objective: prompts shortened, models switched."""
