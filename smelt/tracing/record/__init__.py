"""Recording one run of the user's code at the torch level and at the aten level."""
