"""The target and its parts: decoder, caches, passes, checkpoints."""
