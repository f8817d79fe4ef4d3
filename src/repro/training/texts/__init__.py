"""What is trained on: prompts, questions, answers of the target, and the record of a training."""
