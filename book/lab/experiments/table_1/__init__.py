"""Table 1, measured: the layer types of section 4."""
