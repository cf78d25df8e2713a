"""Python's object protocols, carried out by the machine.

Calls: `calls` (the table by kind of callable), `python_functions`, `binding`, `native_calls`, `native_arguments`, `arity`,
`callbacks`, `construction`, `nn_modules`, `lru_caches`. Values: `attributes/`, `operators`, `subscripts`, `iteration`,
`lengths`, `containers`, `container_constructors`, `formatting`, `symbolic_numbers`. Statements: `scopes`, `cells`,
`raising`, `match_statement`, `context_managers`.
"""
