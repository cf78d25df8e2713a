"""What ATen operators are made of: pure counterparts of writing operators, decompositions."""
