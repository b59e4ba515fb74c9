"""Constituency parsing (section 6.3): trees as sequences, and how they are scored."""
