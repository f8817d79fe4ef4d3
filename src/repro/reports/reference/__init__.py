"""Published values and the bibliography."""
