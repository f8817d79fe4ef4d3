"""Running a model on a device: placement, engines, sessions."""
