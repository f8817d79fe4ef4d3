"""Sub-models of one model: ordered units, adapters, importance, costs."""
