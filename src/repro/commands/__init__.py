"""What the command `repro` does by a verb, each in a module with its arguments and what it prints."""
