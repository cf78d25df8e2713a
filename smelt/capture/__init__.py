"""Bytecode to graph: the VM interprets a frame over real objects, with fakes in place of tensors.

The objects that the frame reads are guarded; its side effects are replayed.

The packages, top first; imports point down this list only:

    driver/          at a cache miss: capture the frame, compile the graph, install the entry
    emit/            the compiled frame: Python source that calls the graph, reconstructs the result and replays the effects
    interpreter/     the interpreter loop, and one handler per opcode
    stdlib/          handlers of functions of Python and its standard library
    torch_calls/     handlers of torch functions, methods, autograd and control flow
    graph_breaks/    resume points, suspended frames, and the resume functions that continue after a break
    semantics/       Python's object protocols: calls, attributes, operators, containers, scopes, exceptions
    vm/              the state of a capture and its abstract operations, which the packages above implement
    environment/     objects from outside of the call: sources, guards, native views, the overlay of changes
    reconstruction/  source text that reconstructs objects in compiled frames, by kind of object
    proxies/         values known only at run time: NumPy arrays, texts
    base/            shared foundations: value kinds, decoded bytecode, frames, native functions, handler tables
"""
