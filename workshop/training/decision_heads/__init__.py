"""Training of heads that score prompt tokens and choose the levels that serve a request."""
