"""The model (section 3): attention, feed-forward network, embedding, stacks, and the Transformer of Figure 1."""
