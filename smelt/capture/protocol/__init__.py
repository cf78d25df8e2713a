"""Python's object protocols, carried out by the machine: calls, attributes, operators, containers, scopes, exceptions."""
