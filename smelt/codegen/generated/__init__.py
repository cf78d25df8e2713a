"""ATen calls that become generated code: matrix products and windows over images, with the kernels that they absorb."""
