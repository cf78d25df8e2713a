"""Functions of torch that the VM carries out itself."""
