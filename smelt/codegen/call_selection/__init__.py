"""Which ATen calls become generated code, and how: matrix products (`matrices`) and windows over images (`windows`), with
the elementwise kernels that they absorb (`absorb`); `items` puts them into a schedule. `codegen.llvm` compiles them."""
