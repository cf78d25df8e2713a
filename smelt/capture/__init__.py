"""Bytecode to graph: a frame is interpreted over real objects, with fakes in place of tensors.

What it read is guarded, what it did to the world is replayed.

The packages, top first; imports point down this list only:

    driver/       what the native hook asks at a miss: capture the frame, compile the graph, install the entry
    emit/         the compiled frame: Python source that calls the graph, rebuilds the result and replays the effects
    interpreter/  the virtual machine: its loop, and one handler per opcode
    library/      functions of Python, its standard library and torch that the machine carries out itself
    breaks/       graph breaks: where a frame can be left, and the resume function that goes on from there
    protocol/     Python's object protocols: calls, attributes, operators, containers, scopes, exceptions
    machine/      the machine as the packages above see it: its state in parts, and the operations they may ask of it
    outside/      objects from outside of the call: sources, guards, what native code sees of them, the overlay of changes
    rebuilding/   what a compiled frame must make anew, as rows of source text by kind of object
    standins/     values that stand for what is known at run time only: NumPy arrays, texts
    base/         what all of them use: values, decoded bytecode, frames, native functions, the tables of handlers
"""
