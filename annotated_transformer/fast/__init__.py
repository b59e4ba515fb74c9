"""What only makes it sooner, at equal values: packing, fused decoding, 8 bits."""
