"""Programs of lazy tensors (`tensor`, rewritten by `rewrite`), which lowerings write with `builder` and `values`, and the
kernels that they become: the representation (`ir`) with its verifier, printer and reference interpreter."""
