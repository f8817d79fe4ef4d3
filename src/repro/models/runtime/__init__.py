"""Running a model on a device: placement, weight loading, layer streaming, sessions."""
