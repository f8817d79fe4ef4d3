"""What papers published: values and bibliography."""
