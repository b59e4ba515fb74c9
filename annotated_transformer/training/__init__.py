"""Training (sections 5.2 to 5.4): the optimizer, the loss, one step, and the loop around it."""
