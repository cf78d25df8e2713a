"""State that neither an attribute nor a dictionary holds is guarded, or read at a graph break."""

import ast
import decimal
import functools
import inspect
import json
import logging
import string
import textwrap
import typing

import numpy as np
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
def test_state_of_stored_objects(make):
    assert results(smelt.compile, *make())[0] == results(lambda fn: fn, *make())[0]


@pytest.mark.parametrize("name", DECIMALS)
def test_decimal_arithmetic_uses_the_context_of_the_thread(name):
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


def encoder():
    encoder = json.JSONEncoder()
    return (lambda: encoder.encode([1, 2])), (lambda i: setattr(encoder, "item_separator", str(i)))


def syntax_tree():
    tree = ast.parse("a + 1")
    return (lambda: ast.unparse(tree)), (lambda i: tree.body.append(ast.Pass()))


def log_record():
    record, form = logging.makeLogRecord({"msg": "a"}), logging.Formatter("%(message)s")
    return (lambda: (record.getMessage(), form.format(record))), (lambda i: setattr(record, "msg", str(i)))


def log_format():
    record, form = logging.makeLogRecord({"msg": "a"}), logging.Formatter("%(message)s")
    return (lambda: form.format(record)), (lambda i: setattr(form._style, "_fmt", f"{i} %(message)s"))


def log_arguments():
    record = logging.makeLogRecord({"msg": "%s %s", "args": ("a", 0)})
    return record.getMessage, (lambda i: setattr(record, "args", (str(i), i)))


def log_nested_arguments():
    record = logging.makeLogRecord({"msg": "%s", "args": ([("a",)],)})
    return record.getMessage, (lambda i: setattr(record, "args", ([(str(i),)],)))


def exception():
    error = ValueError("a", ("b", 1))
    return (lambda: (str(error), repr(error))), (lambda i: setattr(error, "args", (str(i), (str(i), i))))


def listed():
    texts = ["a", "b"]
    return (lambda: ("1" in texts, texts.count("2"), json.dumps(texts))), (
        lambda i: texts.__setitem__(0, str(i))
    )


def listed_tuples():
    pairs = [("a", "z"), ("b", "c")]
    return (lambda: (max(pairs), ("1", "z") in pairs)), (lambda i: pairs.__setitem__(0, (str(i), "z")))


def table():
    texts = {"k": ("a", 1)}
    return (lambda: (json.dumps(texts), texts == {"k": ("1", 1)})), (lambda i: texts.update(k=(str(i), i)))


def template():
    text = string.Template("$a")
    return (lambda: text.substitute(a=1)), (lambda i: setattr(text, "template", f"{i} $a"))


STATES = (
    text_wrapper, annotations, encoder, syntax_tree, log_record, log_format, log_arguments, log_nested_arguments,
    exception, listed, listed_tuples, table, template,
)  # fmt: skip


@pytest.mark.parametrize("make", STATES, ids=lambda f: f.__name__)
def test_state_that_the_library_reads(make):
    assert results(smelt.compile, *make())[0] == results(lambda fn: fn, *make())[0]


class Subclass(np.ndarray):
    pass


def masked():
    return np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])


def first(array, i):
    array[0] = i + 7


# What is made, how it is changed between calls, what is read of it.
ARRAYS = {
    "masked": (masked, first, lambda a: (a.sum(), a.count(), a.mean(), a.mask, a[0], a.tolist())),
    "masked, mask": (masked, lambda a, i: first(a, np.ma.masked), lambda a: (a.mask.tolist(), a.filled())),
    "masked, fill": (masked, lambda a, i: setattr(a, "fill_value", i), lambda a: (a.fill_value, a.filled())),
    "masked, held": (
        lambda: {"a": masked()},
        lambda table, i: first(table["a"], i),
        lambda table: (np.ma.sum(table["a"]), np.sum(table["a"])),
    ),
    "subclass": (
        lambda: np.ones(3).view(Subclass),
        first,
        lambda a: (
            a[0],
            float(a[0]),
            a.sum(),
            np.sum(a),
            a + 1,
            len(a),
            a.tolist(),
            7 in a,
            sum(v for v in a),
        ),
    ),
    "matrix": (
        lambda: np.matrix([[1.0, 2.0]]),
        lambda a, i: first(a, i),
        lambda a: (a * a.T, a.sum(), a[0, 0]),
    ),
    "flat": (lambda: np.arange(4.0).flat, first, lambda a: (a[0], len(a), a.base)),
    "records": (
        lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]).view(np.recarray),
        lambda a, i: first(a.a, i),
        lambda a: (a.a[0], a["a"], a[0]),
    ),
    "one record": (
        lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])[0],
        lambda a, i: a.__setitem__("a", i),
        lambda a: (a["a"], a.item(), a),
    ),
    "objects": (lambda: np.array([1, "x"], dtype=object), first, lambda a: (a[0], a.tolist())),
    "texts": (lambda: np.array(["a", "b"]), lambda a, i: first(a, i), lambda a: (a[0], np.char.upper(a))),
    "polynomial": (
        lambda: np.polynomial.Polynomial([1, 2, 3]),
        lambda p, i: setattr(p, "coef", np.array([i, 1.0])),
        lambda p: (p(2.0), p.degree(), str(p)),
    ),
    "old polynomial": (lambda: np.poly1d([1, 2, 3]), first, lambda p: (p(2), p.order, p.deriv().c)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_state_of_array_subclasses(name):
    make, change, read = ARRAYS[name]

    def world():
        held = make()
        return (lambda: read(held)), (lambda i: change(held, i))

    assert results(smelt.compile, *world())[0] == results(lambda fn: fn, *world())[0]
