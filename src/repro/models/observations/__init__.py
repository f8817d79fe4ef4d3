"""What checkpoints said after prefixes: a model's own text, and packs that carry it to other machines."""
