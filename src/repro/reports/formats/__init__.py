"""A table as Markdown, LaTeX, CSV and on the screen."""
