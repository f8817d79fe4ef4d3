"""Tables as Markdown, LaTeX and CSV, and on the terminal."""
