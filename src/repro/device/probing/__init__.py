"""What the machine at hand does: rates of its memory, disk and processors, and whether it is quiet."""
