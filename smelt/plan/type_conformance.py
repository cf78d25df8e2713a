"""Whether a value conforms to a type annotation: classes, unions, tuples, lists, mappings, `Any`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

Test = Callable[[Any], bool]


@functools.cache
def test_of(annotation: object) -> Test:
    """The test for `annotation`. Elements count, as for mypy; unlike for mypy, a bool is not an int."""
    if annotation is Any:
        return lambda value: True
    return _TESTS.get(get_origin(annotation), _class)(annotation)


@functools.cache
def fields_of(cls: type) -> Mapping[str, object]:
    """The annotations of a dataclass."""
    return get_type_hints(cls)


def name_of(annotation: object) -> str:
    """The annotation's name for error messages."""
    return annotation.__name__ if type(annotation) is type else str(annotation)


def _class(cls: Any) -> Test:
    return lambda value: isinstance(value, cls) and (cls is bool or type(value) is not bool)


def _union(annotation: object) -> Test:
    tests = [test_of(member) for member in get_args(annotation)]
    return lambda value: any(test(value) for test in tests)


def _tuple(annotation: object) -> Test:
    members = get_args(annotation)
    if members[1:] == (...,):
        each = test_of(members[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    tests = [test_of(member) for member in members]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(tests)
        and all(test(v) for test, v in zip(tests, value))
    )


def _list(annotation: object) -> Test:
    each = test_of(*get_args(annotation))
    return lambda value: isinstance(value, list) and all(map(each, value))


def _mapping(annotation: object) -> Test:
    key, item = map(test_of, get_args(annotation))
    return lambda value: isinstance(value, Mapping) and all(key(k) and item(v) for k, v in value.items())


# By what an annotation is made of; classes have none.
_TESTS: dict[object, Callable[[object], Test]] = {
    types.UnionType: _union, Union: _union, tuple: _tuple, list: _list, dict: _mapping, Mapping: _mapping,
}  # fmt: skip
