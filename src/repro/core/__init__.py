"""What everything uses and that knows nothing of language models: errors, names of components, typed
configuration, folders."""
