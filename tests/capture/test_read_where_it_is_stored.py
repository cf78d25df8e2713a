"""What an outside object leads to, where no attribute and no dictionary holds it, is guarded, or read at a graph break."""

import decimal
import functools
import inspect
import textwrap
import typing

import pytest
import torch

import smelt
from smelt.report.inspect import reasons

VALUE = decimal.Decimal("1.23456789")


def stored_super():
    class Base:
        def read(self):
            return self.x

    class Derived(Base):
        def read(self):
            return -1

    owner = Derived()
    owner.x = 0
    proxy = super(Derived, owner)
    return (lambda: proxy.read()), (lambda i: setattr(owner, "x", i + 1))


def stored_comparison_key():
    sign = [1]
    key = functools.cmp_to_key(lambda a, b: (a - b) * sign[0])
    three = key(3)
    return (lambda: (three < key(4), sorted([3, 1, 2], key=key))), (lambda i: sign.append(-sign.pop()))


DECIMALS = {
    "quotient": lambda: VALUE / 3,
    "negative": lambda: -VALUE,
    "absolute": lambda: abs(VALUE),
    "power": lambda: pow(VALUE, 3),
    "remainder": lambda: divmod(VALUE, decimal.Decimal("0.1")),
    "sum": lambda: sum([VALUE, 1]),
    "root": lambda: VALUE.sqrt(),
    "made inside": lambda: decimal.Decimal(1) / 7,
    "comparison": lambda: (VALUE < 2, max(VALUE, decimal.Decimal(1)), float(VALUE), str(VALUE)),
}


def results(compile, fn, change):
    compiled, seen = compile(lambda x: (x + 1, fn())), []
    for i in range(4):
        seen.append(repr(compiled(torch.zeros(1))[1]))
        change(i)
    return seen, compiled


@pytest.mark.parametrize("make", (stored_super, stored_comparison_key))
def test_what_stored_objects_hold(make):
    assert results(smelt.compile, *make())[0] == results(lambda fn: fn, *make())[0]


@pytest.mark.parametrize("name", DECIMALS)
def test_decimals_are_computed_in_the_threads_context(name):
    seen = []
    for compile in (smelt.compile, lambda fn: fn):
        with decimal.localcontext() as context:
            context.clear_flags()
            found, compiled = results(compile, DECIMALS[name], lambda i: setattr(context, "prec", 4 + i))  # noqa: B023
            seen.append((found, dict(context.flags)))
            if compile is smelt.compile:
                assert bool(reasons(compiled)) == (name != "comparison")
    assert seen[0] == seen[1]


def text_wrapper():
    wrapper = textwrap.TextWrapper(width=5)
    return (lambda: wrapper.wrap("aaa bbb ccc")), (lambda i: setattr(wrapper, "width", 7 + 4 * i))


def annotations():
    def f(a: int): ...

    kinds = (str, float, list, dict)
    hints = f.__annotations__
    return (lambda: (typing.get_type_hints(f), inspect.signature(f))), (lambda i: hints.update(a=kinds[i]))


@pytest.mark.parametrize("make", (text_wrapper, annotations))
def test_what_the_library_reads(make):
    assert results(smelt.compile, *make())[0] == results(lambda fn: fn, *make())[0]
