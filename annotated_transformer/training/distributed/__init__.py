"""Many processes that make one run: torchrun's processes, DDP and FSDP2, sharded checkpoints."""
