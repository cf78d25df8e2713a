"""Random changes of lists, deques, dictionaries, sets and instances, whose contents differ in each call: results and
contents, order included, are eager's. What a program neither reads nor writes has no guard and must stay."""

from __future__ import annotations

import collections
import linecache
import random
from collections.abc import Callable
from typing import Any

import pytest

import smelt

_SEQUENCE = """
h[0] = n | h[1] = h[0] | h.append(n) | h.append(h[0]) | h[-1] = n | h.insert(0, n) | h.insert(1, h[-1]) | del h[0] | h.pop()
h[0], h[1] = h[1], h[0] | h += [n] | h.extend([n, 5]) | h[0] += n | h.reverse() | h.remove(h[1]) | r.append(h[1])
r.append(len(h)) | r.append(list(h)) | r.append(n in h) | r.append(h.index(h[1])) | h.clear(); h.extend([n, n, n])
r.append(sum(h)) | h[len(h) - 1] = h[0] | for i in range(len(h)): h[i] = h[i] + 1 | h[0] = h[0] | if h[0] > 2: h[1] = n
"""
_LIST = """
h.pop(0) | h[1:2] = [n, n] | h.sort() | del h[1:2] | h[:] = h[1:] + h[:1] | k = h.pop(); h.append(k) | h *= 2
heapq.heappush(h, n) | heapq.heapify(h) | r.append(heapq.heappop(h)) | bisect.insort(h, n)
"""
_DEQUE = "h.appendleft(n) | h.popleft() | h.rotate(1) | h.extendleft([n, 6])"
_DICTIONARY = """
h['a'] = n | h['z'] = n | h['b'] = h.get('a', 3) | r.append(h.get('c')) | h.pop('a', None) | h.pop('z', None)
h.setdefault('q', n) | h.update(a=1, y=n) | r.append(list(h)) | r.append(list(h.items())) | r.append(len(h))
r.append('a' in h) | h['a'] = h.pop('b', 2) | if 'c' in h: del h['c'] | h |= {'c': n} | r.append(sum(h.values()))
for k in list(h): h[k] = n | h.clear(); h['w'] = 1 | r.append(h.popitem() if h else 0) | r.append(next(iter(h), None))
r.append(h.setdefault('a', n)) | h.update({k: 0 for k in h}) | r.append(sorted(h))
"""
_SET = """
h.add(n) | h.discard(1) | h.discard(n) | r.append(n in h) | r.append(len(h)) | r.append(list(h)) | h |= {n, 7}
h &= {1, 2, 3, n} | h -= {2} | h ^= {3, n} | h.update([n, 9]) | r.append(sorted(h)) | r.append(h.pop() if h else 0)
h.clear(); h.add(n) | h.intersection_update([1, 2, n])
"""
_INSTANCE = """
h.a = n | h.z = n | h.b = getattr(h, 'a', 3) | r.append(getattr(h, 'c', None)) | h.__dict__.pop('a', None)
vars(h)['q'] = n | r.append(list(vars(h))) | r.append(hasattr(h, 'a')) | if hasattr(h, 'c'): del h.c
h.__dict__.update(a=1, y=n) | r.append(len(vars(h))) | for k in list(vars(h)): setattr(h, k, n)
h.a = getattr(h, 'a', 0) + 1 | h.__dict__.clear() | h.__dict__ = {'w': n} | h.__dict__ = dict(vars(h))
"""


class Plain:
    pass


def _instance(pairs: dict[str, int]) -> Plain:
    made = Plain()
    made.__dict__.update(pairs)
    return made


# What is made of a list or of a dictionary, and the statements that change it.
_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "list": (list, _SEQUENCE + _LIST),
    "deque": (collections.deque, _SEQUENCE + _DEQUE),
    "set": (set, _SET),
    "dictionary": (dict, _DICTIONARY),
    "ordered dictionary": (collections.OrderedDict, _DICTIONARY),
    "defaultdict": (lambda pairs: collections.defaultdict(int, pairs), _DICTIONARY),
    "instance": (_instance, _INSTANCE),
}


def _statements(text: str) -> list[str]:
    return [each.strip() for line in text.split("\n") for each in line.split(" | ") if each.strip()]


def _contents(kind: str, choices: random.Random) -> Any:
    if kind in ("list", "deque", "set"):
        return [choices.randrange(6) for _ in range(choices.choice([3, 3, 3, 4, 5]))]
    keys = list("abcqz")
    choices.shuffle(keys)
    return {key: choices.randrange(5) for key in keys[: choices.choice([2, 3, 3, 4])]}


def _seen(holder: Any) -> list[Any]:
    pairs = vars(holder) if isinstance(holder, Plain) else holder
    return list(pairs.items() if isinstance(pairs, dict) else pairs)


def _refill(held: Any, new: Any) -> None:
    """Give a global that stays the same object other contents."""
    held = vars(held) if isinstance(held, Plain) else held
    held.clear()
    (held.update if hasattr(held, "update") else held.extend)(vars(new) if isinstance(new, Plain) else new)


def _run(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_changes_are_eagers(kind: str, seed: int) -> None:
    choices = random.Random(f"{kind} {seed}")
    make, text = _KINDS[kind]
    body = [choices.choice(_statements(text)) for _ in range(choices.randrange(1, 6))]
    if choices.random() < 0.2:
        body.insert(choices.randrange(len(body) + 1), "smelt.graph_break()")
    is_global = choices.random() < 0.5
    lines = [
        "import bisect, heapq, smelt",
        f"def program(n, {'_' if is_global else ''}h):",
        "    r = []",
        *(f"    {line}" for line in body),
        "    return r",
    ]
    source, name = "\n".join(lines), f"<updates {kind} {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    eager: dict[str, Any] = {"__name__": "eager"}
    other: dict[str, Any] = {"__name__": "compiled"}
    for namespace in (eager, other):
        exec(compile(source, name, "exec"), namespace)
    compiled = smelt.compile(other["program"], backend="eager")
    for call in range(7):
        contents, n = _contents(kind, choices), choices.randrange(6)
        want, got = make(contents), make(contents)
        if is_global and call and choices.random() < 0.7:
            _refill(eager["h"], want)
            _refill(other["h"], got)
        elif is_global:
            eager["h"], other["h"] = want, got
        assert _run(compiled, n, got) == _run(eager["program"], n, want), source
        want, got = (eager["h"], other["h"]) if is_global else (want, got)
        assert type(got) is type(want)
        assert _seen(got) == _seen(want), source


def test_other_items_of_a_list_stay() -> None:
    def program(held: list[int], n: int) -> None:
        held[0] = n
        held.append(n)

    compiled = smelt.compile(program, fullgraph=True)
    for contents in ([1, 2, 3], [7, 8, 9], [4, 5, 6]):
        compiled(contents, 1)
    assert contents == [1, 5, 6, 1]
