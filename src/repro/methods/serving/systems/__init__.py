"""The elastic services that a trace is served by."""
