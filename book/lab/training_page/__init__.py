"""A page in which a model learns to reverse words, and the same in PyTorch."""
