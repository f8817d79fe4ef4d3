"""One forward pass over tokens, computed or remembered."""
