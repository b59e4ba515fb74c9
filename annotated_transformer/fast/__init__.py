"""What only makes it faster: packing, fused decoding, the loss in blocks, 8 bits."""
