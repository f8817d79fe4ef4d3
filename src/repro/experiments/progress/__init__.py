"""Progress of a sweep: notes of its cells, how long cells take, and what the screen shows meanwhile."""
