"""What a finished cell or sweep shows: its figures, what people compare, and two results side by side."""
