"""Published methods and their baselines: how a model decodes, is compressed, looked into or served."""
