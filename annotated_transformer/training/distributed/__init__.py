"""Several processes that make one run: torchrun, and DDP."""
