"""Serving: a service answers a trace of requests on an emulated phone."""
