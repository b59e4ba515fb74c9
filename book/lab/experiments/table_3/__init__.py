"""Table 3 in miniature (section 6.2)."""
