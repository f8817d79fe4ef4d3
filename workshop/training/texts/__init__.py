"""Training data: prompts, questions, the target's answers, and the training record."""
