"""Pages that compare device files with published facts."""
