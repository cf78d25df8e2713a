"""How a compiled frame makes anew the objects that capture made: rows of source text, by kind of object."""
