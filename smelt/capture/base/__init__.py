"""What all packages of capture use: values, decoded bytecode, frames, native functions, the tables of handlers."""
