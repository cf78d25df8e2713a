"""What the machine does in place of functions of Python, the standard library and torch that cannot run on fakes."""
