"""What can be asked of models and devices: to generate, to choose answers, to show activations, to serve."""
