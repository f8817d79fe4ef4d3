"""A trace of requests is served by an elastic service on an emulated phone."""
