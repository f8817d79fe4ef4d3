"""One published value beside our figure: how far apart they are, and whether the paper's statement holds."""
