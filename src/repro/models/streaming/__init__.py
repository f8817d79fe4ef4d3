"""Layers read from storage while others compute: the file, its reader, and the order of reads."""
