"""Functions of torch that compute on sizes, written with operators that keep symbolic sizes."""
