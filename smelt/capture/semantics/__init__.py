"""Python's object protocols, executed by the VM.

Packages: `semantics/calls/` (a table by the type of the callable, argument binding, native calls and their callbacks, class
construction, `nn.Module`s, TorchScript, `__torch_function__`), `semantics/values/` (operators, containers, iteration,
formatting, exceptions, `match` and `with`) and `semantics/attributes/` (loads, stores and deletions by the type of the
object). Shared modules: `semantics/scopes.py` (globals and `locals()`), `semantics/cells.py` (closure variables),
`semantics/number_semantics.py` (symbolic numbers), `semantics/result_polyfills.py` (the rest of an instruction after a graph
break inside its callee).
"""
