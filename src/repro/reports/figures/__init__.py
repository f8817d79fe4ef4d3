"""Pictures of tables and of timelines."""
