"""What makes and judges parts of repro, beside the package, which imports none of it."""
