"""What trains: drafts, EAGLE and Medusa heads, early exits, adapters."""
