"""What passes through a model cost: bytes and operations, whole or partitioned."""
