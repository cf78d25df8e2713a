"""Generators and iterators: made, delegated to, half consumed, passed around."""

from tests.catalogue.harness import program, tensor


@program(graphs=1)
def sums_a_generator():
    def values(x, n):
        for i in range(n):
            yield x * i

    def fn(x, n):
        return sum(values(x, n), x)

    return fn, [(tensor(3, 4), 2), (tensor(3, 4), 2), (tensor(2), 5)]


@program()
def returns_a_half_consumed_generator():
    def values(x, n):
        for i in range(n):
            yield x * i

    def fn(x, n):
        made = values(x, n)
        next(made)
        return made, x + 1

    return fn, [(tensor(3, 4), 2), (tensor(3, 4), 2), (tensor(2), 5)]
