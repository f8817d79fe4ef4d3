"""What an experiment asks a table to show."""
