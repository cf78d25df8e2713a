"""Shared foundations of capture: value kinds, decoded bytecode, frames, native functions, handler tables."""
