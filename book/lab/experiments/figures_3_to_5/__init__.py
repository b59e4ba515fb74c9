"""Figures 3 to 5 (the paper's appendix): what attention heads do, with controls."""
