"""The four scenarios: text generation, multiple-choice accuracy, activation probing and serving."""
