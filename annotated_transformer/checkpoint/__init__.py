"""Checkpoints: weights on disk, the directory that holds them, and their average (section 6.1)."""
