"""Looking at attention (the paper's appendix): plots, and a page to explore."""
