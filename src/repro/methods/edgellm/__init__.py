"""EdgeLLM (IEEE TMC 2024)."""
