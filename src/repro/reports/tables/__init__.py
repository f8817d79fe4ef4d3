"""Tables built from records."""
