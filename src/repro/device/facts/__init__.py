"""What a number of a device or engine file may be: its units and its range."""
