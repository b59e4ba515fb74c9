"""The model (section 3): attention, feed-forward network, embedding, stacks, all of Figure 1."""
