"""Changes made through functions, iterators, views, aliases and containers of the user's own; reads in between."""

from __future__ import annotations

import bisect
import collections
import copy
import dataclasses
import functools
import heapq
import itertools
import operator
import struct
import sys
import types
import weakref

import torch
from torch import nn

import smelt
from tests.harness.catalogue import Changing, program, tensor

LEVEL = 1
SETTINGS = {"scale": 2}


class Box:
    def __init__(self, v=0):
        self.v = v


# ------------------------------------------------------------------------------------- through functions of modules


@program(graphs=1, later=2)
def changed_by_functions_of_c():
    heap, ordered, table, numbers = [5, 7, 9], [1, 5], {"a": 1}, [3, 1]

    def fn(x):
        heapq.heappush(heap, 6)
        heapq.heapreplace(heap, 8)
        bisect.insort(ordered, 4)
        operator.setitem(table, "b", x)
        operator.delitem(numbers, 0)
        operator.iadd(numbers, [2, 9])
        list.append(numbers, x)
        dict.update(table, c=3)
        list.sort(ordered, reverse=True)
        return x + heap[0] + len(numbers) + table["c"]

    return fn, [(tensor(3),)] * 3, (heap, ordered, table, numbers)


@program(graphs=1, later=1)
def heapified():
    heap = [5, 1, 4]

    def fn(x):
        heap.append(0)
        heapq.heapify(heap)
        return x * heapq.heappop(heap) + heap[0]

    return fn, [(tensor(3),)] * 3, heap


@program(graphs=1, breaks=["unsupported-object", "unsupported-object"])
def packed_into_buffer():
    raw = bytearray(8)

    def fn(x):
        struct.pack_into("<i", raw, 0, 77)
        return x + struct.unpack_from("<i", raw, 0)[0], struct.pack("<h", 3)

    return fn, [(tensor(3),)] * 3, raw


@program(graphs=0, later=2)
def queues_of_deque_and_heap_of_objects():
    class Job:
        def __init__(self, k, t):
            self.k, self.t = k, t

        def __lt__(self, other):
            return self.k < other.k

    jobs = []

    def fn(x, k):
        heapq.heappush(jobs, Job(k, x))
        if len(jobs) > 1:
            return heapq.heappop(jobs).t * 2
        return x

    return fn, [(tensor(3), 3), (tensor(3), 1), (tensor(3), 2), (tensor(3), 5)], lambda: [j.k for j in jobs]


@program(graphs=1)
def attributes_by_operator_and_partial():
    b = Box()
    part = functools.partial(operator.mul, 3)

    def fn(x):
        put = functools.partial(setattr, b, "v")
        put(x * 2)
        part.note = "n"
        object.__setattr__(b, "w", 1)
        Box.__init__(b, x)
        return b.v + b.w + part(2), part.note

    return fn, [(tensor(3),)] * 3, b


@program(graphs=1, later=2)
def update_through_map_and_comprehension():
    seen = []

    def fn(x):
        list(map(seen.append, [x, 1]))
        [seen.append(i) for i in range(2)]
        any(seen.append(9) for _ in range(2))
        sorted([2, 1], key=lambda v: seen.append(v) or v)
        functools.reduce(lambda a, v: seen.append(v) or a, [1, 2], 0)
        return x + len(seen)

    return fn, [(tensor(3),)] * 3, seen


# ------------------------------------------------------------------------------------------------- while iterating


@program(graphs=1, later=1)
def list_grows_while_iterated():
    held = [torch.ones(3)]

    def fn(x):
        total = x
        for t in held:
            total = total + t
            if len(held) < 3:
                held.append(x * 2)
        return total

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=1)
def list_shrinks_while_iterated():
    held = [1, 2, 3, 4]

    def fn(x):
        for v in held:
            if v % 2 == 0:
                held.remove(v)
        return x + len(held)

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=2)
def iterator_sees_later_changes():
    held = [torch.ones(3), torch.zeros(3)]

    def fn(x):
        it = iter(held)
        first = next(it)
        held.append(x)
        rest = list(it)
        back = reversed(held)
        held.append(x * 2)
        return first + rest[-1] + next(back), len(rest), len(list(back))

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=2)
def lazy_iterators_see_later_changes():
    held = [torch.ones(3)]
    numbers = [1, 2]

    def fn(x):
        z = zip(held, itertools.count())
        m = map(lambda t: t * 2, held)
        c = itertools.chain(held, numbers)
        held.append(x)
        numbers.append(3)
        return [(a + 1, i) for a, i in z], list(m), len(list(c))

    return fn, [(tensor(3),)] * 3, (held, numbers)


@program(graphs=1, later=2)
def dictionary_changes_while_iterated():
    held = {"a": 1, "b": 2}

    def fn(x):
        text = ""
        try:
            for k in held:
                held[k + "!"] = 3
        except RuntimeError as e:
            text = str(e)
        held.pop("a!")
        for k in list(held):
            held[k] = held[k] + 1
        return x + held["a"], text

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=1)
def views_see_later_changes():
    held = {"a": torch.ones(3)}

    def fn(x):
        keys, values, items = held.keys(), held.values(), held.items()
        held["b"] = x
        total = sum(values)
        return total + len(keys), list(keys), [k for k, _ in items], "b" in keys, keys - {"a"}

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=2)
def generator_over_outside_list():
    held = [1, 2]

    def fn(x):
        g = (v * 2 for v in held)
        first = next(g)
        held.append(5)
        return x * first + sum(g)

    return fn, [(tensor(3),)] * 3, held


# ------------------------------------------------------------------------------------------- containers of tensors


@program(graphs=1)
def list_of_tensors_by_every_method():
    a, b = torch.ones(3), torch.zeros(3)
    held = [a, b]

    def fn(x):
        held.reverse()
        held.insert(1, x)
        held[0] = held[0] + 1
        del held[-1]
        held.extend([a, b])
        held[1:3] = [x * 3]
        held.sort(key=lambda t: 0)
        first = held.pop(0)
        held.append(first)
        held[:] = [a, b]
        return first + held[0] + len(held), held[::-1][0] is b, held.index(held[0])

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1, later=1)
def dictionary_of_tensors_by_every_method():
    held = {"a": torch.ones(3), "b": torch.zeros(3)}

    def fn(x):
        nonlocal held
        old = held.pop("a")
        held["a"] = old + x
        held["c"] = held.get("b") + 1
        held.update({k: v * 2 for k, v in held.items() if k != "c"})
        last = held.popitem()
        held |= {"d": x}
        del held["d"]
        return sum(held.values()) + last[1], list(held), held.setdefault("a", 3) + 1

    return fn, [(tensor(3),)] * 3, lambda: held


@program(graphs=1, later=1)
def memory_bank():
    bank = collections.deque(maxlen=3)

    def fn(x):
        bank.append(x.detach())
        while len(bank) < 3:
            bank.appendleft(torch.zeros(3))
        return torch.stack(tuple(bank)).mean(0)

    return fn, [(tensor(3),)] * 4, bank


@program(graphs=1, later=2)
def kv_cache():
    class Cache:
        def __init__(self):
            self.keys, self.values = [], []

        def update(self, k, v, layer):
            if layer >= len(self.keys):
                self.keys.append(k)
                self.values.append(v)
            else:
                self.keys[layer] = torch.cat([self.keys[layer], k], dim=0)
                self.values[layer] = torch.cat([self.values[layer], v], dim=0)
            return self.keys[layer], self.values[layer]

    cache = Cache()

    def fn(x):
        out = x
        for layer in range(2):
            k, v = cache.update(out * 2, out + 1, layer)
            out = (out @ k.T) @ v
        return out

    return fn, [(tensor(1, 3),)] * 3, cache


@program(graphs=1, later=2)
def tensors_shared_between_containers():
    shared = torch.ones(3)
    a, b = {"t": shared}, [shared]

    def fn(x):
        a["t"].add_(x)
        b.append(a["t"])
        return b[0] * 2, b[0] is a["t"], b[-1] is b[0]

    return fn, [(tensor(3),)] * 3, (a, b)


# ----------------------------------------------------------------------------------------------- aliases and cycles


@program(graphs=1)
def two_ways_to_one_object():
    inner = Box(1)
    one, two = Box(inner), {"k": inner}

    def fn(x):
        one.v.v = x
        y = two["k"].v + 1
        two["k"].v = 5
        return y * one.v.v

    return fn, [(tensor(3),)] * 3, (one, two)


@program(graphs=1, later=1)
def aliases_come_apart_between_calls():
    shared = Box(1)
    held = {"a": shared, "b": shared}

    def fn(x):
        held["a"].v = 3
        return x * held["b"].v, held["a"] is held["b"]

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: held.update(b=Box(7))}), held


@program(graphs=1)
def outside_cycle():
    a, b = Box(1), Box(2)
    a.other, b.other = b, a

    def fn(x):
        a.other.other.v = x
        b.other.other.v = 4
        return a.v * b.v, a.other.other is a

    return fn, [(tensor(3),)] * 3, a


@program(graphs=1, later=1)
def objects_exchanged():
    a, b = Box([1]), Box([2])

    def fn(x):
        a.v, b.v = b.v, a.v
        a.v.append(0)
        return x + a.v[0] * len(b.v)

    return fn, [(tensor(3),)] * 3, (a, b)


@program(graphs=1)
def moved_between_containers():
    todo, done = [Box(1), Box(2), Box(3)], []

    def fn(x):
        item = todo.pop(0)
        done.append(item)
        item.v = x
        todo.append(Box(9))
        return item.v + len(todo)

    return fn, [(tensor(3),)] * 3, (todo, done)


@program(graphs=1, later=1)
def new_object_in_many_places():
    a, b = [], {}

    def fn(x):
        made = Box(x)
        a.append(made)
        b["k"] = made
        made.w = a
        del a[:-1]
        return made.v + 1, made

    return fn, [(tensor(3),)] * 3, (a, b)


@program(graphs=1, later=2)
def linked_list_grows():
    @dataclasses.dataclass
    class Link:
        v: object
        next: object = None

    head = Link(0)

    def fn(x):
        node = head
        while node.next is not None:
            node = node.next
        node.next = Link(x)
        return x * 2

    def count():
        n, node = 0, head
        while node is not None:
            n, node = n + 1, node.next
        return n

    return fn, [(tensor(3),)] * 3, count


# ------------------------------------------------------------------------------------------- containers of the user


class Ring(list):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def append(self, v):
        super().append(v)
        if len(self) > self.size:
            del self[0]


class Tracked(dict):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.log = []

    def __getitem__(self, k):
        self.log.append(("get", k))
        return super().__getitem__(k)

    def __setitem__(self, k, v):
        self.log.append(("set", k))
        super().__setitem__(k, v)

    def __delitem__(self, k):
        self.log.append(("del", k))
        super().__delitem__(k)

    def __contains__(self, k):
        self.log.append(("in", k))
        return super().__contains__(k)


class Bag(collections.Counter):
    pass


@program(graphs=1, later=2)
def own_containers_from_outside():
    ring, tracked, bag = Ring(2), Tracked(a=1), Bag("ab")
    ring.append(0)

    def fn(x):
        ring.append(x)
        tracked["b"] = x * 2
        y = tracked["b"] + (1 if "a" in tracked else 0)
        del tracked["b"]
        bag["a"] += 1
        bag.update("c")
        return y + len(ring) + tracked.get("a") + bag["zz"]

    return fn, [(tensor(3),)] * 3, (ring, tracked, bag)


@program(graphs=2, breaks=["graph-break-requested"] * 3)
def what_super_gives_stays_so_over_a_break():
    ring, tracked = Ring(2), Tracked(a=1)

    class Later(Tracked):
        def __getitem__(self, k):
            self.log.append("later")
            return super(Tracked, self).__getitem__(smelt.graph_break() or k)

        def __setitem__(self, k, v):
            super(Tracked, self).__setitem__(smelt.graph_break() or k, v)

    later = Later(a=2)

    def fn(x):
        later["b"] = x + 1
        return later["b"] * later["a"]

    return fn, [(tensor(3),)] * 3, (ring, tracked, later)


@program(graphs=2, breaks=["graph-break-requested"])
def a_container_with_its_own_membership_changes_behind_a_break():
    tracked = Tracked(a=1)

    def fn(x):
        tracked["b"] = x * 2
        smelt.graph_break()
        y = tracked["b"] + (1 if "a" in tracked else 0)
        del tracked["b"]
        return y + tracked.get("a")

    return fn, [(tensor(3),)] * 3, tracked


@program(graphs=1)
def own_containers_made_inside():
    def fn(x):
        ring = Ring(2)
        for i in range(3):
            ring.append(x * i)
        t = Tracked(a=x)
        t["b"] = t["a"] + 1
        return ring, t, sum(ring), Bag("aa") + Bag("b"), ring.size

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=2)
def sequence_of_the_user_from_outside():
    class Rows(collections.abc.MutableSequence):
        def __init__(self):
            self.rows = []

        def __getitem__(self, i):
            return self.rows[i]

        def __setitem__(self, i, v):
            self.rows[i] = v

        def __delitem__(self, i):
            del self.rows[i]

        def __len__(self):
            return len(self.rows)

        def insert(self, i, v):
            self.rows.insert(i, v)

    rows = Rows()

    def fn(x):
        rows.append(x)
        rows.extend([x * 2, 3])
        rows[0] = rows[0] + 1
        last = rows.pop()
        rows.reverse()
        operator.iadd(rows, [1])
        rows.reverse()
        rows.remove(1)
        return rows[0] * last + len(rows)

    return fn, [(tensor(3),)] * 3, rows


# ---------------------------------------------------------------------------------------- globals and modules again


@program(graphs=1)
def globals_written_and_read_everywhere():
    def reader():
        return LEVEL

    def fn(x):
        global LEVEL
        before = reader()
        LEVEL = before + 1
        y = x * reader()
        LEVEL = before
        SETTINGS["last"] = y
        return y + SETTINGS["scale"]

    return fn, [(tensor(3),)] * 3, lambda: (LEVEL, SETTINGS)


@program(graphs=2, breaks=["unsupported-effect", "unsupported-effect"])
def globals_by_their_dictionary():
    def fn(x):
        globals()["LEVEL"] = 4
        y = x * LEVEL
        sys.modules[__name__].LEVEL = 1
        return y + LEVEL + vars(sys.modules[__name__])["LEVEL"]

    return fn, [(tensor(3),)] * 3, lambda: LEVEL


@program(graphs=1, later=3)
def settings_change_between_calls():
    scope = dict(globals())

    def body(x):
        return x * SETTINGS["scale"] + LEVEL

    fn = types.FunctionType(body.__code__, scope, "settings")
    scope["SETTINGS"] = {"scale": 3}
    changes = {
        1: lambda: scope["SETTINGS"].update(scale=5),
        2: lambda: scope.update(LEVEL=10),
        3: lambda: scope.update(SETTINGS={"scale": 5}),
        4: lambda: scope.update(SETTINGS=Box()) or setattr(Box, "__getitem__", lambda self, k: 7),
    }

    return (
        fn,
        Changing([(tensor(3),)] * 5, changes),
        lambda: [delattr(Box, n) for n in ("__getitem__",) if n in vars(Box)] and None,
    )


# -------------------------------------------------------------------------------------------------- nn.Module again


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("state", torch.zeros(3))
        self.plain = torch.zeros(3)


@program(graphs=1)
def module_dictionaries_by_hand():
    class M(Net):
        def forward(self, x):
            self._buffers["state"] = self.state + x.sum(0)
            self.__dict__["plain"] = self.plain + 1
            object.__setattr__(self, "note", x)
            setattr(self, "k", 3)
            return self.lin(x) + self.state + self.plain + self.note.sum() + self.k

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: (m.state, m.plain, m.note)


@program(graphs=1)
def module_reads_of_everything():
    class M(Net):
        def forward(self, x):
            n = sum(p.numel() for p in self.parameters())
            names = (
                [k for k, _ in self.named_parameters()]
                + list(self.state_dict())
                + [type(c).__name__ for c in self.children()]
            )
            mods = [k for k, _ in self.named_modules()]
            return (
                x * n + self.get_parameter("lin.weight").sum(),
                names,
                mods,
                self.training,
                self.get_submodule("lin") is self.lin,
            )

    return M(), [(tensor(2, 3),)] * 3


@program(graphs=1)
def module_state_loaded_inside():
    class M(Net):
        def forward(self, x):
            with torch.no_grad():
                self.load_state_dict({k: v * 0 + 1 for k, v in self.state_dict().items()})
            return self.lin(x) + self.state

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: m.state_dict()


@program(graphs=1, later=2)
def module_grows_between_calls():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)

    def add():
        m.append(nn.Linear(3, 2).requires_grad_(False))

    def replace():
        m[1] = nn.Tanh()

    def thaw():
        m[0].weight.data = m[0].weight.data * 2

    return m, Changing([(tensor(2, 3),)] * 5, {1: add, 2: replace, 3: thaw})


@program(graphs=1, later=1, eager=["user-exception"])
def module_patched_between_calls():
    m = Net()
    m.forward = lambda x: m.lin(x) * 2

    def again():
        m.forward = lambda x: m.lin(x) * 3

    return m, Changing(
        [(tensor(2, 3),)] * 5, {2: again, 4: lambda: delattr(m, "forward") or setattr(m, "forward", m.lin)}
    )


@program(graphs=1)
def apply_and_train_inside():
    class M(Net):
        def forward(self, x):
            seen = []
            self.apply(lambda m: seen.append(type(m).__name__))
            return self.lin(x), seen

    return M().eval(), [(tensor(2, 3),)] * 3


# --------------------------------------------------------------------------------------------------- other objects


@program(
    graphs=1,
    breaks=["unsupported-call"] * 3 + ["unsupported-object"] * 2,
    eager=["unsupported-effect"] * 3,
)
def weak_containers():
    class Key:
        pass

    key = Key()  # one alone: sets of weak references are in the order of addresses
    by_key = weakref.WeakKeyDictionary()
    values = weakref.WeakValueDictionary({"k": key})
    members = weakref.WeakSet([key])

    def fn(x):
        by_key[key] = 3
        members.discard(key)
        members.add(key)
        return x * by_key[key] + len(members) + (values["k"] is key)

    return fn, [(tensor(3),)] * 3, lambda: (len(by_key), len(members))


@program(graphs=0, eager=["unsupported-object"])
def weak_proxy_and_finalize():
    class Thing:
        v = 3

    thing = Thing()
    proxy = weakref.proxy(thing)

    def fn(x):
        return x * proxy.v, weakref.getweakrefcount(thing) > 0

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def weak_reference_dies_between_calls():
    class Thing:
        v = 3

    held = {"thing": Thing()}
    ref = weakref.ref(held["thing"])

    def fn(x):
        found = ref()
        return x * (found.v if found is not None else 10)

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: held.clear()})


@program(graphs=1, later=2)
def frozen_dataclass_by_force():
    @dataclasses.dataclass(frozen=True)
    class F:
        a: int
        items: list = dataclasses.field(default_factory=list)

    f = F(1)

    def fn(x):
        object.__setattr__(f, "a", 5)
        f.items.append(x)
        return x * f.a + len(f.items)

    return fn, [(tensor(3),)] * 3, f


@program(graphs=1, later=2)
def list_inside_named_tuple():
    P = collections.namedtuple("P", "log t")
    p = P([], torch.ones(3))

    def fn(x):
        p.log.append(x)
        return p.t * len(p.log), p, p[0] is p.log

    return fn, [(tensor(3),)] * 3, p


@program(graphs=0, breaks=["unsupported-effect"], eager=["unsupported-effect"])
def exceptions_from_outside():
    error = ValueError("kept")

    def fn(x):
        error.seen = x
        error.args = ("changed", 1)
        try:
            raise error
        except ValueError as e:
            return x + 1, e is error, e.args

    return fn, [(tensor(3),)] * 3, lambda: (error.args, error.seen)


@program(graphs=1, later=1)
def bound_method_from_outside():
    b = Box(3)

    class Acc:
        def __init__(self):
            self.total = 0

        def add(self, v):
            self.total = self.total + v
            return self.total

    add = Acc().add

    def fn(x):
        return add(x) + b.v

    return fn, [(tensor(3),)] * 3, lambda: add.__self__.total


@program(graphs=2, later=2, breaks=["unsupported-call", "unsupported-object"])
def generator_from_outside():
    def numbers():
        total = 0
        while True:
            got = yield total
            total += got or 1

    g = numbers()
    next(g)

    def fn(x):
        return x * g.send(2) + next(g)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["unsupported-object"])
def random_generator_and_tensor_state():
    g = torch.Generator().manual_seed(3)

    def fn(x):
        return x + torch.rand(3, generator=g)

    return fn, [(tensor(3),)] * 3, lambda: g.get_state()


@program(graphs=1, later=2)
def copied_before_changed():
    held = {"a": [1, torch.ones(3)]}

    def fn(x):
        shallow, deep = copy.copy(held), copy.deepcopy(held)
        held["a"].append(x)
        held["b"] = 2
        return x + len(shallow["a"]) + len(deep["a"]), "b" in shallow, deep["a"][1] + 1

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def unpacking_and_star_arguments_share():
    held = [torch.ones(3), torch.zeros(3)]
    options = {"k": 2}

    def inner(*args, **kwargs):
        kwargs["k"] = 9
        return args[0] * kwargs["k"] + len(args)

    def fn(x):
        a, *rest = held
        rest.append(x)
        y = inner(*held, **options)
        return y + a + len(rest), options["k"], len(held)

    return fn, [(tensor(3),)] * 3, (held, options)


@program(graphs=1, later=1)
def class_counter_of_instances():
    class Thing:
        made = 0
        registry = []

        def __init__(self, v):
            type(self).made += 1
            self.registry.append(self)
            self.v = v

    def fn(x):
        return Thing(x).v + Thing.made

    return fn, [(tensor(3),)] * 4, lambda: (Thing.made, len(Thing.registry))


@program(graphs=1, later=3)
def class_attribute_shared_through_instance():
    class Thing:
        items = []
        mode = "a"

    t, u = Thing(), Thing()

    def fn(x):
        t.items.append(x)
        t.mode = "b"
        Thing.mode = "c"
        return x + len(u.items), u.mode, t.mode

    return fn, [(tensor(3),)] * 4, lambda: (Thing.items, Thing.mode, vars(t))


@program(graphs=1, later=2)
def a_write_to_what_a_later_call_also_passes_as_another_argument():
    def fn(out, a, b):
        out += a
        return out * b

    def views(kind):
        base = tensor(3, 4)
        out, a, b = tensor(4), base[0], base[1]
        return {"apart": (out, a, b), "first": (a, a, b), "second": (b, a, b), "all": (out, a, a)}[kind]

    return fn, [views(kind) for kind in ("apart", "apart", "second", "all", "first", "apart")]


@program(graphs=2, later=2, breaks=["unsupported-effect"])
def out_made_inside_is_resized():
    def fn(x):
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        return out * 2, out.shape

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(5),)]


@program(graphs=2, later=2, breaks=["unsupported-effect"])
def out_of_several_results_in_cells_is_resized():
    def fn(x):
        values, places = torch.empty(0), torch.empty(0, dtype=torch.long)

        def run():
            torch.sort(x, out=(values, places))
            return values.size(), places.size()

        return run(), values + 1

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=3, breaks=["unsupported-effect"])
def out_is_resized_where_the_result_would_broadcast():
    def fn(x, out):
        torch.neg(x, out=out)
        return out + 1

    sizes = [((1,), (3,)), ((1,), (3,)), ((4,), (2, 4)), ((3,), (3,)), ((1, 3), (2, 3)), ((5,), (0,))]
    return fn, [(tensor(*x), tensor(*out)) for x, out in sizes]


@program(graphs=2, breaks=["unsupported-effect"])
def out_in_a_slice_is_resized():
    def fn(x, rows):
        part = rows[:0]
        torch.mul(x, 2, out=part)
        return part + 1, part

    return fn, [(tensor(2, 4), tensor(8, 4)) for _ in range(3)]
