"""Many processes that make one run: torchrun's processes, and DDP."""
