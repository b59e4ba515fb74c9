"""What only makes it sooner, at equal values: packing, a decoder of few calls, 8 bits, CUDA graphs."""
