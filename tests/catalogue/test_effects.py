"""Changes of objects from outside, objects that escape, and what is seen when an exception comes in between.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import itertools
import types

import torch
from torch import nn

from tests.harness.catalogue import Changing, asserts_on_gpu, call, program, tensor

COUNTER = 0
TABLE: dict = {}


class Box:
    shared = 0

    def __init__(self, v=0):
        self.v = v

    def put(self, v):
        self.v = v
        return self


# ------------------------------------------------------------------------------------------------------ attributes


@program(graphs=1)
def attributes_set_read_deleted():
    b = Box(3)

    def fn(x):
        b.v = x + 1
        b.w = b.v * 2
        b.gone = 5
        del b.gone
        b.text = "t"
        return b.w + len(b.text), hasattr(b, "gone")

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1, later=1)
def attribute_of_argument():
    def fn(x, b):
        b.v, old = x * 2, b.v
        return old if isinstance(old, int) else old + 1

    b = Box(3)
    return fn, [(tensor(3), b), (tensor(3), b), (tensor(3), b)]


@program(graphs=1, later=1)
def attribute_deleted_from_outside():
    b = Box(3)

    def fn(x):
        if hasattr(b, "v"):
            y = x * b.v
            del b.v
            return y
        b.v = 4
        return x

    return fn, [(tensor(3),)] * 4, b


@program(graphs=1, later=2)
def setter_property_of_outside_object():
    class P:
        def __init__(self):
            self.log = []
            self._v = 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.log.append(len(self.log))
            self._v = value

    p = P()

    def fn(x, k):
        p.v = x * k
        p.v = p.v + 1
        return p.v

    return fn, [(tensor(3), 1), (tensor(3), 1), (tensor(3), 1)], p


@program(graphs=1, later=1)
def vars_and_dict_updates():
    b = Box(3)

    def fn(x):
        vars(b)["a"] = x
        b.__dict__.update(c=x * 2, d=4)
        b.__dict__.pop("d")
        return b.a + b.c, sorted(vars(b))

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1, later=1)  # the names that are replaced are guarded
def dict_replaced():
    b = Box(3)

    def fn(x):
        b.__dict__ = {"v": x, "n": 4}
        return b.v * b.n

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1)
def class_attribute_set():
    class K:
        count = 0
        items = []

    def fn(x):
        K.last = x
        K.items.append(x)
        return x + 1

    return fn, [(tensor(3),)] * 3, lambda: (K.last, K.items)


@program(graphs=1, later=1)
def class_attribute_counts():
    class K:
        count = 0

    def fn(x):
        K.count += 1
        return x * K.count

    return fn, [(tensor(3),)] * 4, lambda: K.count


@program(graphs=1)
def class_attribute_deleted():
    class K:
        pass

    def fn(x):
        K.temp = x
        y = K.temp + 1
        del K.temp
        return y, hasattr(K, "temp")

    return fn, [(tensor(3),)] * 3, lambda: sorted(k for k in vars(K) if k[0] != "_")


@program(graphs=1)
def method_put_on_class():
    class K:
        pass

    def fn(x):
        K.go = lambda self, y: y * 3
        return K().go(x)

    return fn, [(tensor(3),)] * 3, lambda: K.go(None, 2)


@program(graphs=1)
def function_attributes():
    def helper(x):
        helper.calls = x
        return x * 2

    def fn(x):
        y = helper(x)
        helper.note = "n"
        return y + helper.calls

    return fn, [(tensor(3),)] * 3, lambda: (helper.calls, helper.note)


@program(graphs=1, later=2)
def function_attribute_counter():
    def fn(x):
        fn.calls = getattr(fn, "calls", 0) + 1
        return x * fn.calls

    return fn, [(tensor(3),)] * 3, lambda: fn.calls


@program(graphs=1)
def module_attribute_set():
    mod = types.ModuleType("scratch")
    mod.v = 1

    def fn(x):
        mod.v = x * 2
        mod.w = 3
        return mod.v + mod.w

    return fn, [(tensor(3),)] * 3, lambda: (mod.v, mod.w)


@program(graphs=1)
def module_attribute_deleted():
    mod = types.ModuleType("scratch")
    mod.v = 1

    def fn(x):
        mod.w = x
        y = mod.w + mod.v
        del mod.w
        return y

    return fn, [(tensor(3),)] * 3, lambda: sorted(k for k in vars(mod) if k[0] != "_")


# ----------------------------------------------------------------------------------------------------------- lists


@program(graphs=1, later=1)
def list_methods():
    held = [3, 1, 2]

    def fn(x):
        held[:] = [3, 1, 2]
        held.append(x)
        held.insert(0, "first")
        held.extend([4, x * 2])
        last = held.pop()
        held.remove(1)
        held.reverse()
        del held[0]
        held[1] = 9
        return last + len(held) + held.index(9, 1)

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def list_of_argument_grows():
    def fn(x, seen):
        seen.append(x * 2)
        seen += [1]
        return seen[-2] + 1

    seen = []
    return fn, [(tensor(3), seen), (tensor(3), []), (tensor(3), [])]


@program(graphs=1, later=2)
def list_slices_and_sort():
    held = [5, 3, 4]
    other = held

    def fn(x):
        held[1:2] = [7, 8]
        held.sort(key=lambda v: -v)
        del held[::2]
        held[len(held) :] = [5, 3, 4][: 3 - len(held)]
        return x + other[0]

    return fn, [(tensor(3),)] * 4, (held, other)


@program(graphs=1, later=1)
def list_multiplied_and_cleared():
    held = [1]
    cleared = [1, 2]

    def fn(x):
        nonlocal held
        keep = held
        held *= 2
        held[:] = held[:1]
        cleared.clear()
        cleared.extend((x, x))
        return x + len(cleared), keep is held

    return fn, [(tensor(3),)] * 3, lambda: (held, cleared)


@program(graphs=1)
def nested_lists_alias():
    inner = [1]
    outer = [inner, inner]

    def fn(x):
        outer[0].append(x)
        y = outer[1][-1] * 2
        inner.pop()
        outer.append(outer)
        outer.pop()
        return y

    return fn, [(tensor(3),)] * 3, outer


# ----------------------------------------------------------------------------------------------------- dictionaries


@program(graphs=1, later=1)
def dictionary_methods():
    held = {"a": 1, "b": 2}

    def fn(x):
        held["c"] = x
        held.update({"d": x * 2}, e=5)
        gone = held.pop("e")
        held.setdefault("f", []).append(gone)
        held["f"].clear()
        del held["d"]
        key, value = held.popitem()
        return held["c"] * gone + len(value), key, held.get("zz")

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def dictionary_order():
    held = {"a": 1, "b": 2, "c": 3}

    def fn(x):
        v = held.pop("a")
        held["a"] = v
        return x * v

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=1)
def dictionary_merge_in_place():
    held = {"a": 1}

    def fn(x):
        nonlocal held
        held |= {"b": x}
        return held["b"] + held["a"], held | {"c": 2}

    return fn, [(tensor(3),)] * 3, lambda: held


@program(graphs=1, later=1)
def dictionary_cleared_and_iterated():
    held = {"a": 1, "b": 2}

    def fn(x):
        total = sum(held.values())
        keys = list(held)
        held.clear()
        held.update(dict.fromkeys(keys, 1))
        return x * total, [k for k in held], dict(held.items())

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=3)
def cache_in_dictionary():
    cache = {}

    def fn(x, n):
        if n not in cache:
            cache[n] = torch.arange(n).float()
        return x + cache[n].sum()

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 4), (tensor(3), 2), (tensor(3), 4)], cache


@program(graphs=1)
def keys_are_objects():
    class Key:
        pass

    key = Key()
    held = {}

    def fn(x):
        held[key] = x
        held[Key] = x * 2
        held[fn] = 1
        held[(1, "a")] = x + 1
        return held[key] + held[Key]

    return fn, [(tensor(3),)] * 3, lambda: list(held.values())


@program(graphs=1, breaks=["unsupported-object"])
def keys_with_python_hash():
    class Key:
        def __init__(self, k):
            self.k = k

        def __hash__(self):
            return hash(self.k)

        def __eq__(self, other):
            return isinstance(other, Key) and self.k == other.k

    a = Key(1)
    held = {a: 1}

    def fn(x):
        local = {Key(1): x, Key(2): x * 2}
        return local[a] + held[a]

    return fn, [(tensor(3),)] * 3, lambda: list(held.values())


# ------------------------------------------------------------------------------------------------ sets and the rest


@program(graphs=1, later=2)
def set_methods():
    held = {1, 2}

    def fn(x):
        held.add(3)
        held.discard(1)
        held.update([5, 6])
        held.remove(5)
        held.difference_update({6})
        held.symmetric_difference_update({1})
        return x * len(held) + (3 in held), held & {1, 2}, held | {9}

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=1)
def set_operators_in_place():
    held = {1, 2}

    def fn(x):
        nonlocal held
        old = held
        held |= {3}
        held &= {1, 2, 3}
        held -= {3}
        held ^= {7}
        held ^= {7}
        return x + len(held), old is held, held <= {1, 2, 3}, held.isdisjoint({5})

    return fn, [(tensor(3),)] * 3, lambda: held


@program(graphs=1, later=1)
def deque_methods():
    held = collections.deque([1, 2], maxlen=3)

    def fn(x):
        held.append(x)
        held.appendleft(5)
        held.rotate(1)
        y = held[0]
        held.extend([1, 2])
        held.popleft()
        held.extendleft([7])
        return x + len(held) + (1 if isinstance(y, int) else y), held.maxlen, held.count(1)

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def deque_window():
    window = collections.deque([torch.zeros(3), torch.zeros(3)], maxlen=2)

    def fn(x):
        window.append(x * 2)
        return torch.stack(list(window)).sum(0)

    return fn, [(tensor(3),)] * 4, window


@program(graphs=1, later=1)
def ordered_dictionary_of_the_caller():
    class Doubling(collections.OrderedDict):
        def pop(self, key, default=None):
            return super().pop(key, default) * 2

    def fn(x, table):
        table.setdefault("c", x)
        return x * table.pop("a"), list(table)

    return fn, [
        (tensor(3), kind(a=1, b=2)) for kind in (collections.OrderedDict, collections.OrderedDict, Doubling)
    ]


@program(graphs=1)
def ordered_dictionary():
    held = collections.OrderedDict(a=1, b=2, c=3)

    def fn(x):
        held.move_to_end("a")
        held.move_to_end("c", last=False)
        held["d"] = x
        key, value = held.popitem(last=True)
        held.move_to_end("b", last=False)
        held.move_to_end("a", last=False)
        return value * 2, key, list(held), next(reversed(held))

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=2)
def counter_and_defaultdict():
    counts = collections.Counter(a=1)
    groups = collections.defaultdict(list)

    def fn(x):
        counts.update("ab")
        counts["c"] += 2
        counts.subtract(["a", "b"])
        groups["g"].append(x)
        groups["h"]
        top = counts.most_common(1)
        counts.clear()
        counts["a"] = 1
        return groups["g"][-1] + counts["nothing"], top, list(counts.elements())

    return fn, [(tensor(3),)] * 2 + [(tensor(3),)], (counts, groups)


@program(graphs=1, later=1)
def chain_map():
    base = {"a": 1, "b": 2}
    chain = collections.ChainMap({}, base)

    def fn(x):
        chain["a"] = x
        child = chain.new_child({"b": 5})
        return (
            chain["a"] * child["b"] + chain["b"] + len(child),
            list(chain),
            "b" in chain,
            chain.get("zz", 3),
        )

    return fn, [(tensor(3),)] * 3, (base, chain.maps)


@program(graphs=1, later=2)
def default_factory_in_python():
    made = []

    def factory():
        made.append(1)
        return 10

    d = collections.defaultdict(factory)

    def fn(x, k):
        return x * d[k] + d["z"]

    return fn, [(tensor(3), "a"), (tensor(3), "b"), (tensor(3), "a")], (made, d)


@program(
    graphs=3,
    later=1,
    breaks=[
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
    ],
)
def bytearray_and_array():
    raw = bytearray(b"abc")
    numbers = array.array("i", [1, 2])

    def fn(x):
        raw.append(100)
        numbers.append(3)
        own = bytearray(b"xy")
        own.append(1)
        return x + len(raw) + numbers[-1] + own[2], own

    return fn, [(tensor(3),)] * 3, lambda: (bytes(raw), numbers.tolist())


@program(graphs=2, breaks=["unsupported-object", "unsupported-object", "unsupported-object"])
def memoryview_of_outside():
    raw = bytearray(b"abc")
    view = memoryview(raw)

    def fn(x):
        view[0] = 100
        return x + view[0] + raw[0]

    return fn, [(tensor(3),)] * 3, raw


# ------------------------------------------------------------------------------------------------ globals and cells


@program(graphs=1, later=1)
def global_counter():
    global COUNTER
    COUNTER = 0

    def fn(x):
        global COUNTER
        COUNTER += 1
        return x * COUNTER

    return fn, [(tensor(3),)] * 4, lambda: COUNTER


@program(graphs=1)
def global_table_and_new_global():
    TABLE.clear()
    globals().pop("MADE", None)

    def fn(x):
        global MADE
        TABLE["last"] = x
        MADE = x * 2
        return MADE + TABLE["last"]

    return fn, [(tensor(3),)] * 3, lambda: (TABLE, MADE)  # noqa: F821


@program(graphs=1)
def global_deleted():
    def fn(x):
        global TEMPORARY
        TEMPORARY = x + 1
        y = TEMPORARY * 2
        del TEMPORARY
        return y

    return fn, [(tensor(3),)] * 3, lambda: "TEMPORARY" in globals()


@program(graphs=1)
def globals_function():
    def fn(x):
        return x + len(globals()["__name__"]) + globals()["COUNTER"] * 0

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def nonlocal_counter():
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    return fn, [(tensor(3),)] * 4, lambda: n


@program(graphs=1)
def nonlocal_tensor():
    state = torch.zeros(3)

    def fn(x):
        nonlocal state
        state = state * 0.5 + x
        return state.sum()

    return fn, [(tensor(3),)] * 4, lambda: state


@program(graphs=1)
def inner_function_changes_cell():
    total = torch.zeros(3)

    def fn(x):
        def add(v):
            nonlocal total
            total = total + v

        for i in range(3):
            add(x * i)
        return total * 2

    return fn, [(tensor(3),)] * 3, lambda: total


@program(graphs=1)
def cell_deleted():
    def fn(x):
        value = x * 2

        def use():
            nonlocal value
            r = value
            del value
            return r

        y = use()
        try:
            use()
        except NameError as e:
            return y, str(e)

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("running", torch.zeros(3))
        self.register_buffer("steps", torch.tensor(0))
        self.history = []
        self.last = None

    def forward(self, x):
        return self.lin(x)


@program(graphs=1)
def buffers_updated():
    class M(Net):
        def forward(self, x):
            y = self.lin(x)
            self.running.mul_(0.9).add_(y.mean(0))
            self.steps += 1
            self.last = y
            return y - self.running + self.steps

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: (dict(m.named_buffers()), m.last)


@program(graphs=1, later=1)
def buffer_replaced_and_registered():
    class M(Net):
        def forward(self, x):
            self.running = self.running + x.sum(0)
            self.register_buffer("fresh", x * 2, persistent=False)
            return self.fresh + self.running

    m = M()
    return (
        m,
        [(tensor(2, 3),)] * 3,
        lambda: (dict(m.named_buffers()), sorted(m._non_persistent_buffers_set), list(m._buffers)),
    )


@program(graphs=1)
def buffer_deleted_and_none():
    class M(Net):
        def forward(self, x):
            self.cache = x + 1
            y = self.cache
            del self.cache
            self.running = None
            return y, self.running is None

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: list(m._buffers.items())


@program(graphs=1)
def parameter_replaced():
    class M(Net):
        def forward(self, x):
            y = self.lin(x)
            self.lin.weight = nn.Parameter(self.lin.weight + 1, requires_grad=False)
            return y + self.lin(x)

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: dict(m.named_parameters())


@program(graphs=1, later=1)
def parameter_registered_and_deleted():
    class M(Net):
        def forward(self, x):
            if not hasattr(self, "w"):
                self.w = nn.Parameter(torch.ones(3), requires_grad=False)
                return x
            y = x * self.w
            del self.w
            return y

    m = M()
    return m, [(tensor(2, 3),)] * 4, lambda: list(m._parameters)


@program(graphs=1)
def submodule_replaced():
    class M(Net):
        def forward(self, x):
            y = self.lin(x)
            self.lin = nn.Identity()
            return y

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: repr(m)


@program(graphs=0, later=1)
def train_mode_toggled():
    class M(Net):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            y = self.drop(x)
            self.train(not self.training)
            return y

    m = M().eval()
    return m, [(tensor(2, 3),)] * 4, lambda: [c.training for c in m.modules()]


@program(graphs=1)
def history_and_last_of_module():
    class M(Net):
        def forward(self, x):
            self.history.append(x.mean())
            self.last = {"x": x, "n": [x * 2]}
            return self.lin(x)

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: (m.history, m.last)


@program(graphs=1, later=1)
def module_counter():
    class M(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: m.calls


@program(graphs=1, later=1)
def module_list_changed():
    class M(Net):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.ReLU()])

        def forward(self, x):
            self.blocks.append(nn.Tanh())
            for b in self.blocks:
                x = b(x)
            del self.blocks[-1]
            return x

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: repr(m.blocks)


@program(graphs=1)
def grad_of_parameter():
    p = nn.Parameter(torch.ones(3))

    def fn(x):
        p.grad = x * 2
        y = p.grad + 1
        p.grad = None
        return y

    return fn, [(tensor(3),)] * 3, lambda: p.grad


@program(graphs=1)
def grad_accumulates():
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.zeros(3)

    def fn(x):
        with torch.no_grad():
            p.grad += x
            p.sub_(p.grad * 0.1)
        return x * 2

    return fn, [(tensor(3),)] * 3, lambda: (p.grad, p.data)


@program(graphs=1)
def tensor_attributes():
    def fn(x):
        x.note = "seen"
        y = x * 2
        y.note = x.note + "!"
        return y, y.note

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------------- inputs


@program(graphs=1)
def inputs_written_in_place():
    def fn(x, y):
        x.add_(1)
        x[0] = 5.0
        y.copy_(x)
        return x.sum() + y.sum()

    return fn, [(tensor(3), tensor(3)), (tensor(3), tensor(3)), (tensor(3), tensor(3))]


@program(graphs=1, later=1)
def same_tensor_twice():
    t = tensor(3)

    def fn(x, y):
        x.mul_(2)
        return y + 1, x is y

    return fn, [(t, t), (tensor(3), tensor(3)), (t, t)]


@program(graphs=1, later=1)
def view_and_base_as_inputs():
    t = tensor(4)

    def fn(x, y):
        x.add_(1)
        return y * 2

    return fn, [(t, t[:2]), (t, t[:2]), (tensor(4), tensor(2))]


@program(graphs=1)
def containers_of_arguments_alias():
    shared = [1]

    def fn(x, a, b):
        a["k"].append(x)
        return x + len(b["k"])

    return fn, [(tensor(3), {"k": shared}, {"k": shared})] + [
        (tensor(3), {"k": s}, {"k": s}) for s in ([1], [1])
    ]


# ---------------------------------------------------------------------------------------------- objects that escape


@program(graphs=0)
def escaping_objects():
    def fn(x):
        b = Box(x)
        b.me = b
        b.children = [Box(b), Box([b])]
        pair = (b, b)
        return pair, {"b": b, "list": b.children}

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def escaping_callables():
    held = Box(2)

    def fn(x):
        b = Box(x)
        y = x * 2

        def closure(k=3, *, j=x):
            return y + k + j

        return b.put, held.put, functools.partial(closure, 4, j=y), closure, [].append, functools.partial(len)

    return fn, [(tensor(3),)] * 3


@program(graphs=0)
def closures_share_a_cell():
    def fn(x):
        n = x

        def get():
            return n

        def set_(v):
            nonlocal n
            n = v

        return get, set_

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def escaping_exception():
    def fn(x):
        try:
            raise ValueError("a", x * 2)
        except ValueError as e:
            return e.args[1], e.args[0], type(e)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def exception_made_not_raised():
    class Own(Exception):
        def __init__(self, v):
            super().__init__("own")
            self.v = v

    def fn(x):
        return Own(x * 2), KeyError("k")

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def escaping_iterators():
    def fn(x):
        a = iter([x, x * 2, 3])
        next(a)
        c = itertools.count(3)
        next(c)
        return a, c, enumerate([x]), zip([1, 2], [x, x]), reversed([1, x]), range(3), iter(range(4))

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def escaping_itertools():
    def fn(x):
        return (
            itertools.chain([x], [1]),
            itertools.repeat(x, 2),
            itertools.cycle([1, x]),
            map(lambda v: v * 2, [x, 1]),
            filter(None, [0, 1]),
            itertools.islice([x, 1, 2], 1, None),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, eager=["user-exception"])
def iterator_from_outside_advances():
    numbers = iter([1, 2, 3, 4])

    def fn(x):
        return x * next(numbers)

    return fn, [(tensor(3),)] * 3, lambda: None


@program(graphs=1, later=1, breaks=["unsupported-object"])
def counter_from_outside():
    ids = itertools.count(5)

    def fn(x):
        return x * next(ids)

    return fn, [(tensor(3),)] * 3, lambda: repr(ids)


@program(graphs=0)
def escaping_containers():
    def fn(x):
        return (
            collections.OrderedDict(b=x, a=1),
            collections.defaultdict(list, {"k": [x]}),
            collections.deque([x, 1], maxlen=4),
            collections.Counter("aab"),
            types.SimpleNamespace(a=x, b=[x]),
            types.MappingProxyType({"a": x}),
            frozenset([1, 2]),
            {1, 2},
            slice(1, None),
            collections.ChainMap({"a": x}, {"b": 2}),
            collections.UserList([x]),
            collections.UserDict(k=x),
            range(3),
            b"b",
            1j,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=0)
def escaping_views():
    def fn(x):
        d = {"a": x, "b": 2}
        return d.keys(), d.values(), d.items(), d

    return fn, [(tensor(3),)] * 3


@program(graphs=0)
def stored_in_outside_and_returned():
    b = Box()

    def fn(x):
        made = [x, Box(x)]
        b.v = made
        b.w = made[1]
        return made

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1)
def argument_returned_inside():
    def fn(x, box, items):
        return {"x": x, "box": box, "items": items, "t": (items, box)}, x.view(3), items

    b = Box(1)
    return fn, [(tensor(3), b, [b]), (tensor(3), b, [b]), (tensor(3), b, [b])]


@program(graphs=0)
def object_from_outside_in_cycle():
    b = Box()

    def fn(x):
        made = Box(b)
        b.v = made
        made.x = x
        return made

    return fn, [(tensor(3),)] * 3, b


# -------------------------------------------------------------------------------------------------------- exceptions


@program(graphs=1, eager=["user-exception"])
def effects_before_an_exception():
    log = []
    b = Box()

    def fn(x, bad):
        log.append(x.shape)
        b.v = x * 2
        if bad:
            raise ValueError("bad")
        log.append("after")
        return x + 1

    return fn, [(tensor(3), False), (tensor(3), True), (tensor(3), False), (tensor(3), True)], (log, b)


@asserts_on_gpu
@program(graphs=1, later=2)
def effects_before_an_operator_fails():
    log = []

    def fn(x, i):
        log.append(len(log))
        y = x * 2
        log.append(y)
        return y.index_select(0, i)

    i, bad = torch.tensor([0, 1]), torch.tensor([0, 7])
    return fn, [(tensor(3), i), (tensor(3), bad), (tensor(3), i)], log


@program(graphs=0, eager=["user-exception"])
def exception_in_nested_call():
    b = Box()

    class Own(Exception):
        pass

    def inner(x):
        b.v = x + 1
        raise Own("inner") from KeyError("k")

    def fn(x):
        try:
            inner(x)
        finally:
            b.w = 3

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1, later=2)
def exception_caught_after_effects():
    log = []

    def fn(x):
        try:
            log.append("try")
            {}["missing"]
        except KeyError as e:
            log.append(e.args)
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x + len(log) * 0

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1, eager=["user-exception"])
def assertion_fails():
    b = Box()

    def fn(x, n):
        b.v = n
        assert n < 3, f"n is {n}"
        return x * n

    return fn, [(tensor(3), 1), (tensor(3), 4), (tensor(3), 1)], b


# ----------------------------------------------------------------------------------------------- order of user code


@program(graphs=1)
def order_of_observed_stores():
    log = []

    class Watch:
        def __setattr__(self, name, v):
            log.append((name, isinstance(v, torch.Tensor)))
            super().__setattr__(name, v)

    class Items(dict):
        def __setitem__(self, k, v):
            log.append(k)
            super().__setitem__(k, v)

    w, d = Watch(), Items()

    def fn(x):
        w.a = x
        d["k"] = x * 2
        w.b = 3
        d["j"] = w.b
        w.a = x + 1
        return d["k"] + w.a

    return fn, [(tensor(3),)] * 3, (log, w, d)


@program(graphs=1)
def context_manager_effects():
    log = []

    class Scope:
        def __enter__(self):
            log.append("enter")

        def __exit__(self, *info):
            log.append("exit")

    scope = Scope()

    def fn(x):
        with scope:
            log.append(x)
            return x * 2

    return fn, [(tensor(3),)] * 3, log


VAR = contextvars.ContextVar("VAR", default=1)


@program(graphs=1)
def context_variable_set_and_reset():
    def fn(x):
        token = VAR.set(5)
        y = x * VAR.get()
        VAR.reset(token)
        return y + VAR.get()

    return fn, [(tensor(3),)] * 3, lambda: VAR.get()


@program(graphs=0, eager=["unsupported-effect"])
def context_variable_left_set():
    VAR.set(1)

    def fn(x):
        y = x * VAR.get()
        VAR.set(VAR.get() + 1)
        return y + VAR.get()

    return fn, [(tensor(3),)] * 3, lambda: VAR.get()


@program(graphs=1, later=4)
def world_changes_between_calls():
    b = Box(2)
    held = [1, 2]
    d = {"a": 1}

    def fn(x):
        return x * b.v + len(held) + d.get("b", 0)

    changes = {
        1: lambda: setattr(b, "v", 5),
        2: lambda: held.append(3),
        3: lambda: d.update(b=4),
        4: lambda: setattr(b, "v", tensor(3)),
    }
    return fn, Changing([(tensor(3),)] * 5, changes)


@program(graphs=1, later=1)
def keyword_arguments_and_defaults_changed():
    def fn(x, *rest, scale=2, **more):
        more["added"] = x
        return x * scale + sum(rest) + len(more), more

    return fn, [call(tensor(3), 1, a=2), call(tensor(3), 1, a=2), call(tensor(3), scale=3)]


@program(graphs=1)
def mutable_default_argument():
    def fn(x, seen=[]):  # noqa: B006
        seen.append(x)
        return x + 1, seen

    return fn, [(tensor(3),)] * 3, lambda: fn.__defaults__
