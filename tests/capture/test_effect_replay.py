"""Programs that mutate environment objects. Capture must leave all objects unchanged; replaying the graph and the effects
must then give eager's result and eager's final state.
"""

import collections
import copy
import dataclasses
import datetime
import functools
import json
import os
import random
import time

import numpy
import pytest
import torch
from torch import nn

from smelt.capture.base.value_kinds import MISSING
from smelt.capture.environment import side_effects as fx
from smelt.errors import Unsupported
from smelt.graph.graph_interpreter import run
from smelt.guards.guard import first_failing
from smelt.guards.read_source import Reader
from tests.harness.agreement import same
from tests.harness.captured import capture, slots_of, substitute

PROGRAMS = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


class Plain:
    def __init__(self, v):
        self.v = v
        self.t = torch.ones(4) * v

    def __repr__(self):
        return f"Plain({self.v})"

    def __eq__(self, other):
        return isinstance(other, Plain) and self.v == other.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, other):
        return self.v < other.v


class ShiftedDict(dict):
    def __getitem__(self, k):
        return dict.__getitem__(self, k) + 1


class OwnList(list):
    pass


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class WithProperty:
    def __init__(self):
        self._p = 2

    def __repr__(self):
        return "WithProperty"

    @property
    def p(self):
        return self._p

    @p.setter
    def p(self, v):
        self._p = v

    @functools.cached_property
    def cp(self):
        return self._p * 10


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1


class World(nn.Module):
    """Holds one of everything."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(4.0))
        self.register_buffer("buf", torch.ones(4))
        self.lin = nn.Linear(4, 4)
        self.lst = [1, 2, [3]]
        self.dct = {"a": 1, "b": [5]}
        self.st = {1, 2}
        self.n = 0
        self.h = Plain(2)
        self.hs = [Plain(3), Plain(1)]
        self.ts = [torch.ones(4), torch.zeros(4)]
        self.md = ShiftedDict(a=1)
        self.ml = OwnList([1, 2])
        self.sl = Slotted()
        self.pr = WithProperty()
        self.nested = {"k": {"t": torch.ones(4) * 2}}
        self.tup = (1, [2], torch.ones(4) * 3)
        self.dq = collections.deque([1, 2], maxlen=2)
        self.dd = collections.defaultdict(list)
        self.od = collections.OrderedDict(a=1, b=2)
        self.fn = lambda q: q * 2
        self.frz = Frozen(2)
        self.ctr = collections.Counter("aab")
        self.fns = {"f": lambda q: q + 1}


@program
def counter(s, x):
    s.n += 1
    s.n += 1
    return x * s.n


@program
def append(s, x):
    s.lst.append(4)
    s.lst[0] = 9
    return x * len(s.lst) + s.lst[0] + s.lst[-1]


@program
def aliased_list(s, x):
    a = s.lst
    b = {"q": a}
    a.append(1)
    return x * len(b["q"]) + (b["q"] is s.lst) + (s.lst is a)


@program
def nested_list(s, x):
    s.lst[2].append(7)
    return x * sum(s.lst[2]) + len(s.lst[2])


@program
def equality_of_changed(s, x):
    s.lst[2].append(7)
    return x * (s.lst == [1, 2, [3, 7]]) + ([s.lst[2]] == [[3, 7]])


@program
def text_of_changed(s, x):
    s.lst[2].append(7)
    s.h.v = 100
    return x * len(str(s.lst)) + len(f"{s.dct}") + len(repr(s.h))


@program
def objects_in_lists(s, x):
    s.h.v = 3
    return x * (s.h in s.hs) + s.hs.index(s.h)


@program
def sorted_objects(s, x):
    s.hs[1].v = 50
    r = sorted(s.hs)
    return x * r[0].v + max(s.hs).v


@program
def object_as_key(s, x):
    s.h.v = 7
    d = {s.h: 1}
    return x * d[Plain(7)]


@program
def copies_of_changed(s, x):
    s.lst[2].append(7)
    s.h.v = 9
    c, d = copy.deepcopy(s.lst), copy.deepcopy(s.h)
    e = copy.copy(s.h)
    e.v += 1
    return x * sum(c[2]) * d.v + d.t + e.v + s.h.v


@program
def json_of_changed(s, x):
    s.dct["b"].append(1)
    return x * len(json.dumps(s.dct))


@program
def index_by_list(s, x):
    s.ilst = [0, 1]
    return x[s.ilst] + x[[0, 1]].sum()


@program
def tensors_in_list(s, x):
    return torch.stack(s.ts).sum() * x + torch.cat([*s.ts, s.buf]).sum()


@program
def tensors_stored_in_list(s, x):
    s.ts.append(x[0])
    s.ts[0] = x[1]
    return torch.stack(s.ts)


@program
def dict_subclass(s, x):
    s.md["b"] = 5
    return x * s.md["b"] + len(s.md) + s.md["a"]


@program
def list_subclass(s, x):
    s.ml.append(3)
    return x * sum(s.ml) + len(s.ml)


@program
def slots(s, x):
    s.sl.b = 3
    s.sl.a += 1
    return x * s.sl.a * s.sl.b


@program
def properties(s, x):
    s.pr.p = 7
    return x * s.pr.p + s.pr.cp + s.pr.cp


@program
def dict_changed_in_loop(s, x):
    for k in list(s.dct):
        s.dct[k + "x"] = 2
    return x * len(s.dct) + sum(1 for _ in s.dct.items())


@program
def dict_views(s, x):
    k = s.dct.keys()
    s.dct["z"] = 1
    return x * len(k)


@program
def dict_methods(s, x):
    s.dct.pop("a")
    s.dct.setdefault("c", [])
    s.dct.update(q=4)
    return x * len(s.dct)


@program
def list_changed_in_loop(s, x):
    n = 0
    for _ in s.lst:
        if n < 3:
            s.lst.append(1)
        n += 1
    return x * n


@program
def set_(s, x):
    s.st.add(5)
    return x * len(s.st) + (5 in s.st)


@program
def deque_(s, x):
    s.dq.append(4)
    return x * s.dq[0] + len(s.dq)


@program
def default_dict(s, x):
    s.dd["q"].append(x)
    return s.dd["q"][0] * len(s.dd)


@program
def ordered_dict(s, x):
    s.od.move_to_end("a")
    return x * list(s.od).index("a")


@program
def buffer(s, x):
    s.buf.add_(1)
    s.buf = s.buf * 2
    return x * s.buf


@program
def deleted_attribute(s, x):
    del s.n
    return x * hasattr(s, "n") + getattr(s, "n", 5)


@program
def instance_dict(s, x):
    s.__dict__["n"] = 5
    s.h.v = 8
    return x * s.n + vars(s.h)["v"]


@program
def list_in_tuple(s, x):
    s.tup[1].append(3)
    return x * sum(s.tup[1]) + s.tup[2] + (s.tup is s.tup)


@program
def frozen(s, x):
    return x * dataclasses.replace(s.frz, a=5).a + s.frz.a


@program
def counter_object(s, x):
    s.ctr["b"] += 4
    return x * s.ctr["b"] + s.ctr.most_common(1)[0][1]


@program
def function_values(s, x):
    return s.fn(x) + s.fns["f"](x)


@program
def state_dict(s, x):
    return sum(v.sum() for v in s.state_dict().values()) * x


@program
def slices(s, x):
    s.lst[1:] = [7, 8, 9]
    s.lst += [1]
    return x * sum(s.lst)


@program
def concatenation(s, x):
    z = s.lst + [1]
    z2 = s.lst * 2
    return x * len(z) + len(z2) + len([*s.lst, *s.lst]) + len({**s.dct, "q": 1})


@program
def unpacked(s, x):
    a, b, c = s.lst
    return x * a * b + c[0]


@program
def bound_methods(s, x):
    f = s.lst.append
    f(3)
    g = s.dct.get
    s.dct["a"] = 70
    return x * len(s.lst) + g("a")


@program
def types_of_tensors(s, x):
    y = x * isinstance(s.w, nn.Parameter) + isinstance(s.buf, nn.Parameter)
    return y + (type(s.w) is nn.Parameter) + (type(s.buf) is torch.Tensor)


@program
def identity_keys(s, x):
    d = {id(s.h): 1, s.lin: 2, s.w: 3, x: 4}
    return x * d[id(s.h)] + d[s.lin] + d[s.w] + d[x]


@program
def membership(s, x):
    return x * any(v > 1 for v in s.lst[:2]) + (2 in s.lst) + s.lst.index(2) + s.lst.count(1)


@program
def tensor_identity(s, x):
    return x * any(q is s.ts[1] for q in s.ts)


@program
def stored_results(s, x):
    s.cache = {"last": x + 1, "all": [x]}
    s.nested["k"]["t"] = x * 2
    return x


@program
def in_place_on_an_outside_tensor(s, x):
    s.ts[0].add_(x[0])
    return s.ts[0] * 2


@program
def clear_and_refill(s, x):
    s.lst.clear()
    s.lst.extend([x, x + 1])
    s.st.clear()
    s.od.clear()
    s.od["z"] = 1
    return s.lst[0] + s.lst[1]


def apply(effects, env):
    """Replays effects as a compiled frame would: all values first, then all stores."""
    ready = [(e, {k: substitute(v, env) for k, v in vars(e).items() if k != "target"}) for e in effects]
    for effect, value in ready:
        APPLY[type(effect)](effect.target, **value)


def replace_contents(target, items):
    """Makes a container hold `items`, in order, through the methods of its builtin base."""
    if isinstance(target, collections.OrderedDict):
        collections.OrderedDict.clear(target)
        for key, value in items:
            collections.OrderedDict.__setitem__(target, key, value)
        return
    base = next(b for b in (dict, list, set, collections.deque) if isinstance(target, b))
    base.clear(target)
    (base.extend if base in (list, collections.deque) else base.update)(target, items)


def set_cell(cell, value):
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value


APPLY = {
    fx.SetAttr: lambda target, name, value: object.__setattr__(target, name, value),
    fx.DelAttr: lambda target, name: object.__delattr__(target, name),
    fx.SetItem: lambda target, key, value: type(target).__setitem__(target, key, value),
    fx.DelItem: lambda target, key: type(target).__delitem__(target, key),
    fx.ReplaceContents: replace_contents,
    fx.SetChange: lambda target, method, args: getattr(set, method)(target, *args),
    fx.Extend: lambda target, items: list.extend(target, items),
    fx.SetCell: set_cell,
}


def describe(world):
    """Everything that can be seen of a world, as text."""
    slots = [(n, getattr(world.sl, n, None)) for n in ("a", "b")]
    plain = {k: v for k, v in vars(world).items() if k not in ("fn", "fns") and not k.startswith("_")}
    plain["sl"] = slots
    return repr(
        [plain, vars(world.h), [vars(h) for h in world.hs], vars(world.pr), list(world.state_dict().items())]
    )


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fn, x = PROGRAMS[name], torch.randn(3, 4)
    torch.manual_seed(0)
    eager = World()
    torch.manual_seed(0)
    world = World()
    before = describe(world)
    identities = [id(v) for v in vars(world).values()]
    frame = capture(fn, world, x)
    assert describe(world) == before, "capture changed the world"
    assert [id(v) for v in vars(world).values()] == identities
    slots = slots_of(fn, (world, x))
    failing = first_failing(frame.guards, slots)
    assert failing is None, f"a guard fails right after capture: {failing.text}"
    read = Reader(slots)
    inputs = [read(o) for o in frame.input_sources]
    outputs = run(frame.traced.torch_graph, inputs)
    env = {id(f): t for f, t in zip(frame.traced.inputs, inputs)}
    env.update({id(f): t for f, t in zip(frame.traced.outputs, outputs)})
    apply(frame.effects, env)
    want = fn(eager, x.clone())
    same(substitute(frame.result, env), want)
    assert describe(world).replace(" ", "") == describe(eager).replace(" ", "")


class Counted:
    total = 0


counts = {"n": 0}
GLOBAL = 1


def test_a_store_into_a_global_is_an_effect():
    def fn(x):
        global GLOBAL
        GLOBAL += 1
        return x * GLOBAL

    frame = capture(fn, torch.ones(2))
    assert GLOBAL == 1
    (effect,) = frame.effects
    assert (effect.target, effect.key, effect.value) == (globals(), "GLOBAL", 2)


def test_a_store_into_a_closure_is_an_effect():
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    frame = capture(fn, torch.ones(2))
    assert n == 0
    (effect,) = frame.effects
    assert isinstance(effect, fx.SetCell) and effect.value == 1
    assert frame.source_of(effect.target) is not None


def test_everything_is_rolled_back_when_capture_fails():
    world = World()
    before = describe(world)

    def fn(s, x):
        s.lst.append(x)
        s.buf = x
        s.lin.weight = nn.Parameter(torch.ones(4, 4))
        s.h.v = x
        counts["n"] += 1
        with torch.autocast("cpu"):
            time.sleep(0)

    with pytest.raises(Unsupported) as error:
        capture(fn, world, torch.ones(4))
    assert error.value.reason.kind.id == "input-output"
    assert error.value.reason.line.line == fn.__code__.co_firstlineno + 7
    assert describe(world) == before and counts == {"n": 0}
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("data dependent", "data-dependent-condition"),
        ("a stream of the user's", "output"),
        ("outside iterator", "unsupported-object"),
        ("threads", "unsupported-effect"),
        ("asynchronous", "unsupported-call"),
    ],
)
def test_refused_effects(name, reason):
    iterator = iter({1, 2})

    async def numbers():
        yield 1

    programs = {
        "data dependent": lambda x: x if x.sum() > 0 else -x,
        "a stream of the user's": lambda x: print(x.shape, file=Counted),
        "outside iterator": lambda x: x + next(iterator),
        "threads": lambda x: torch.set_num_threads(1),
        "asynchronous": lambda x: numbers(),
    }
    with pytest.raises(Unsupported) as error:
        capture(programs[name], torch.ones(2))
    assert error.value.reason.kind.id == reason
    assert error.value.reason.line.filename == __file__
    assert error.value.reason.stack
    assert Counted.total == 0 and not torch.is_grad_enabled()


def test_reads_of_the_outside_world_are_refused():
    array, generator = numpy.ones(2, dtype=numpy.float32), torch.Generator()
    programs = [
        lambda x: x * random.random(),
        lambda x: x * time.time(),
        lambda x: x + datetime.datetime.now().year,
        lambda x: x + float(array.sum()),
        lambda x: x + generator.initial_seed(),
        lambda x: x + len(os.listdir(".")),
    ]
    for program in programs:
        with pytest.raises(Unsupported):
            capture(program, torch.ones(2))


def test_an_environment_variable_is_guarded(monkeypatch):
    monkeypatch.setenv("SOME_VARIABLE", "3")

    def fn(x):
        return x * int(os.environ.get("SOME_VARIABLE", "1"))

    x = torch.ones(2)
    frame = capture(fn, x)
    assert first_failing(frame.guards, (x,)) is None
    monkeypatch.setenv("SOME_VARIABLE", "4")
    assert first_failing(frame.guards, (x,)) is not None
