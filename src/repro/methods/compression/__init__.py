"""Ways to make a model smaller or its arithmetic coarser, one a file."""
