"""What the paper's Tables 1 to 3 count: operations, parameters, variations (sections 4 and 6.2)."""
