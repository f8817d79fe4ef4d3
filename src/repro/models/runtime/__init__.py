"""A model at work on a device: placement, loading, streaming, sessions."""
