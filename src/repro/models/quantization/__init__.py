"""Formats of few bits and the layers that compute in them."""
