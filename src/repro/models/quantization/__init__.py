"""Low-bit weight formats and the linears that compute with them."""
