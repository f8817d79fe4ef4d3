"""Published methods and their baselines: decoding, compression, probes and serving."""
