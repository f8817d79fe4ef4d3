"""FLOPs and bytes of forward passes, whole or partitioned."""
