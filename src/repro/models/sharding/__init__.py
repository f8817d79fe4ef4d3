"""A model divided by layers among several devices."""
