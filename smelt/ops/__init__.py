"""What ATen operators do to memory, their pure counterparts, decompositions."""
