"""Tracing: one run of the user's code on fake tensors, recorded at the torch level and at the aten level.

A fake tensor (`fake/`) has all metadata of a real one and no data. While a `Trace` (`record/trace.py`) is entered,
each torch-level call of the user's code becomes a node of the torch-level graph, and each ATen operator that it
dispatches to becomes a node of the aten graph. Both graphs are SSA: a node has a target, arguments (nodes, numbers,
containers) and a spec.

* `record/`: the two torch modes, the recorders, the tape, and the finished `Traced`.
* `fake/`: fake tensors, operator results computed on meta tensors, aliases, version counters.
* `symbolic/`: symbolic ints, floats and sizes; unbacked (data-dependent) sizes.
* `composites/`: torch functions whose C++ code would specialize symbolic sizes, rewritten in operators that do not.
* `functionalize/`: functionalization of graphs with in-place writes.
* `backward/`: the recorded backward and the joint graph of forward and backward.

docs/tracing.md describes all of it.
"""
