"""From records to the cells of a table."""
