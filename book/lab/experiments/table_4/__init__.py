"""Table 4: parsing with the Transformer (section 6.3)."""
