"""What one can choose: lists of names with their meaning, help, and sentences about wrong names."""
