"""The native guard tree: every accessor and every guard kind, holding and failing, and what the tree collects.

`tree(source, kind, value)` builds a tree through smelt.guards.tree_layout, as capture does; most tests also ask the Python
evaluation of the same guards, which must agree.
"""

import collections
import contextvars
import enum
import functools
import gc
import itertools
import math
import sys
import types
import weakref

import pytest
import torch
from torch import nn

from smelt import _native as native
from smelt.guards import tree_layout
from smelt.guards.class_facts import ClassFacts
from smelt.guards.guard import Guard, first_failing
from smelt.guards.object_lifetimes import lifetimes_of
from smelt.guards.source import Source
from smelt.guards.tensor_facts import tensor_facts


def arg(slot=0):
    return Source("arg", f"a{slot}", index=slot)


def const(value, name="c"):
    return Source("const", name, value=value)


def at(base, *steps):
    """The source reached from `base` by (kind, key) steps."""
    for kind, key in steps:
        base = base.child(kind, key)
    return base


class Guarded:
    """Guards, their native tree, and the check that the Python evaluation agrees."""

    def __init__(self, *guards, collect=()):
        made = [Guard(*g) for g in guards]
        self.spec = tree_layout.build(made, collect, lifetimes_of(made).objects)
        self.tree = native.GuardTree(self.spec.native)

    def __call__(self, *slots):
        accepted = self.tree.check(*slots) is not None
        assert not sys.exc_info()[0]
        python = first_failing(self.spec.guards, slots)
        assert accepted == (python is None), (accepted, python)
        failed = self.tree.explain(*slots)
        assert accepted == (failed is None)
        return accepted


def one(kind, value, source=None):
    return Guarded((kind, source or arg(), value))


# --------------------------------------------------------------------------------------------- accessors


class Plain:
    kind = "class attribute"

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Hostile:
    """Fails the test if any of its code runs."""

    def __getattribute__(self, name):
        pytest.fail(f"user code ran: {name}")

    __eq__ = __hash__ = __len__ = __bool__ = __getattribute__


def reads(source, good, *bad):
    """The object at `source` of the only argument equals 7 for `good`, and differs or is missing for `bad`."""
    guard = one("eq", 7, source)
    for _ in range(2):  # the second time hints are in place
        assert guard(good)
        for x in bad:
            assert not guard(x)


def test_attr_of_instances():
    reads(at(arg(), ("attr", "x")), Plain(x=7), Plain(x=8), Plain(y=7), Plain(), 7, None, Slotted(7))
    with_dict = Plain(x=7)
    with_dict.__dict__  # noqa: B018 - makes the dictionary
    reads(at(arg(), ("attr", "x")), with_dict)
    moved = Plain(y=1, x=7)
    reads(at(arg(), ("attr", "x")), moved, Plain(y=7, x=1))
    many = Plain(**{f"n{i}": i for i in range(100)}, x=7)
    reads(at(arg(), ("attr", "x")), many, Plain(**{f"n{i}": 7 for i in range(100)}))
    deleted = Plain(x=7)
    del deleted.x
    reads(at(arg(), ("attr", "x")), Plain(x=7), deleted)


def test_attr_with_names_that_are_not_interned():
    x = Plain()
    object.__setattr__(x, "".join(["long_", "name"]), 7)
    reads(at(arg(), ("attr", "long_name")), x)
    y = Plain()
    y.__dict__["".join(["long_", "name"])] = 7
    reads(at(arg(), ("attr", "".join(["long", "_name"]))), x, Plain(a=1))
    reads(at(arg(), ("attr", "long_name")), y)


def test_attr_of_classes_modules_and_functions():
    def f():
        pass

    f.x = 7
    module = types.ModuleType("m")
    module.x = 7
    cls = type("C", (), {"x": 7})
    for good in (f, module, cls):
        reads(at(arg(), ("attr", "x")), good, types.ModuleType("n"), type("D", (), {}), type("E", (cls,), {}))


def test_attr_runs_no_user_code():
    hostile = Hostile()
    object.__setattr__(hostile, "x", 7)
    reads(at(arg(), ("attr", "x")), hostile, Hostile())


def test_member_reads_c_descriptors():
    reads(at(arg(), ("member", "x")), Slotted(7), Slotted(8), Slotted.__new__(Slotted))
    reads(at(arg(), ("member", "start")), slice(7, 9), slice(6, 9))
    assert one("eq", torch.Size([2, 3]), at(arg(), ("member", "shape")))(torch.ones(2, 3))
    assert not one("eq", torch.Size([2, 3]), at(arg(), ("member", "shape")))(torch.ones(3, 3))


def test_member_refuses_properties():
    class Property:
        x = property(lambda self: pytest.fail("user code ran"))

    class Descriptor:
        class X:
            def __get__(self, *args):
                pytest.fail("user code ran")

        x = X()

    for cls in (Property, Descriptor):
        tree = native.GuardTree((((-1, "arg", 0, (), -1), (0, "member", "x", ((5, "eq", 7),), -1)), 0))
        assert tree.check(cls()) is None and tree.explain(cls()) == 5
        assert tree.check(cls) is None


def test_param_looks_where_modules_look():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("running", torch.ones(2))
            self.child = nn.Linear(1, 1)

    model = Model()
    for name in ("weight", "running", "child"):
        guard = one("id", getattr(model, name), at(arg(), ("param", name)))
        assert guard(model) and guard(model)
        assert not guard(Model()) and not guard(3) and not guard(Plain())
        assert not one("id", None, at(arg(), ("param", "absent")))(model)
    child = model.child
    guard = one("id", child, at(arg(), ("param", "child")))
    assert guard(model)
    model._buffers["child"] = None  # found before the modules
    assert not guard(model)
    del model._buffers["child"]
    assert guard(model)
    model._parameters["child"] = None
    assert not guard(model)


def test_items():
    reads(at(arg(), ("item", 1)), [0, 7], [0, 8], [0], [], {2: 7}, None, 5)
    reads(at(arg(), ("item", 1)), (0, 7), (0, 8), (0,))
    reads(at(arg(), ("item", -1)), [0, 7], [7, 0], [])
    reads(at(arg(), ("item", 1)), {1: 7}, {1: 8}, {0: 7})
    reads(at(arg(), ("item", "k")), {"k": 7}, {"k": 8}, {"j": 7}, [7])
    reads(at(arg(), ("item", "k")), {3: 1, "k": 7}, {3: 7})
    reads(at(arg(), ("item", ("a", 1))), {("a", 1): 7}, {("a", 2): 7})
    reads(at(arg(), ("item", 1)), collections.deque([0, 7]), collections.deque([7]))
    reads(at(arg(), ("item", "k")), collections.OrderedDict(k=7), collections.OrderedDict(k=8))
    reads(at(arg(), ("item", 1)), torch.Size([0, 7]), torch.Size([7]))


def test_items_run_no_user_code():
    class List(list):
        __getitem__ = __len__ = lambda *a: pytest.fail("user code ran")

    class Dict(dict):
        __getitem__ = __len__ = lambda *a: pytest.fail("user code ran")

    class Missing(dict):
        __missing__ = lambda *a: pytest.fail("user code ran")

    reads(at(arg(), ("item", 0)), List([7]), List([8]), List())
    reads(at(arg(), ("item", 0)), Dict({0: 7}), Dict({0: 8}), Dict())
    tree = native.GuardTree((((-1, "arg", 0, (), -1), (0, "item", 0, (), -1)), 0))
    assert tree.check(Hostile()) is None
    assert tree.check(Missing()) is None and tree.check(Missing({0: 1})) is not None
    default = collections.defaultdict(list)
    assert tree.check(default) is None and not default


def test_cells_and_defaults():
    def make(value):
        def f(a, b=value, *, k=value):
            return value

        return f

    for steps in (("cell", 0), ("default", 0), ("default", -1), ("kwdefault", "k")):
        reads(at(arg(), steps), make(7), make(8), lambda: 0, 7, len)
    empty = make(7)
    del empty.__closure__[0].cell_contents
    reads(at(arg(), ("cell", 0)), make(7), empty)


def test_type_dict_and_call():
    assert one("id", int, at(arg(), ("type", None)))(3)
    assert not one("id", int, at(arg(), ("type", None)))(True)
    reads(at(arg(), ("dict", None), ("item", "x")), Plain(x=7), Plain(x=8), Plain(), 3)
    reads(at(arg(), ("type", None), ("attr", "x")), type("C", (), {"x": 7})(), Plain())
    var = contextvars.ContextVar("var")
    get = var.get  # sources do not keep it alive
    guard = one("eq", 7, at(const(get), ("call", None)))
    assert not guard()  # raises LookupError: missing
    token = var.set(7)
    assert guard()
    var.reset(token)
    assert not guard()


def test_other_threads_run_while_python_code_is_asked():
    """What was read before stays alive, and nobody finds the collector off."""
    kept, seen = [], []

    def asked():
        held[0] = None
        kept.extend(Plain() for _ in range(100))  # of the size of what was let go of
        seen.append(gc.isenabled())
        return True

    held = [None]
    read = at(arg(), ("item", 0))
    made = [Guard("type", read, Plain), Guard("id", at(const(asked), ("call", None)), True)]
    tree = native.GuardTree(tree_layout.build(made, (read,), lifetimes_of(made).objects).native)
    for x in range(3):
        held[0] = Plain(x=x)
        (collected,) = tree.check(held)
        assert collected.x == x
        assert held == [None]
    assert all(seen)
    assert tree.memo_size() is None


def started(iterator, count=1):
    list(itertools.islice(iterator, count))
    return iterator


def test_items_that_an_iterator_will_give():
    others = (iter([1]), iter([]), started(iter([7]), 2), 7, iter({7}), map(int, "07"), enumerate([7, 7]))
    for good in (iter([0, 7]), iter((0, 7)), started(iter(range(8)), 6)):
        reads(at(arg(), ("ahead", 1)), good, *others)
    reads(at(arg(), ("ahead", 0)), started(iter(range(1, 12, 3)), 2), iter(range(0)), iter(range(1 << 70)))
    reads(at(arg(), ("ahead", 1)), started(reversed([4, 7, 5, 6])), reversed([7]), reversed((7, 7)))
    for text in ("a\xe4", "\u0100\xe4\u0100"):
        assert one("eq", "\xe4", at(arg(), ("ahead", 1)))(iter(text))
        assert not one("eq", "\xe4", at(arg(), ("ahead", 1)))(started(iter(text)))


def test_elements_of_tensors():
    rows = torch.arange(6.0).view(2, 3)
    for tensor in (
        rows,
        rows.double(),
        rows.T.contiguous().T,
        rows.clone().requires_grad_(),
        torch.arange(9.0)[1:][None] - 1,
    ):
        assert one("eq", 4.0, at(arg(), ("element", 4)))(tensor)
    others = (
        rows.int(),
        rows.to_sparse(),
        rows[:1],
        rows.half(),
        rows.to("meta"),
        torch.empty(0),
        -rows,
        rows * torch.nan,
    )
    for other in (*others, torch._neg_view(-rows), [4.0] * 6, 4.0, None):
        assert not one("eq", 4.0, at(arg(), ("element", 4)))(other)
    assert one("eq", 2.5, at(arg(), ("element", 0)))(torch.tensor(2.5))


def test_entries_of_dictionaries():
    table = {3: 1, 4: 7, 7: 2, 8: 7}
    reads(at(arg(), ("ahead", 1)), started(iter(table)), iter(table), iter({7: 7}), iter({}))
    reads(at(arg(), ("ahead", 2)), started(iter(table.values())), iter(table.values()), iter({}.values()))
    reads(at(arg(), ("ahead", 1), ("item", 0)), started(iter(table.items())), iter(table.items()))
    reads(at(arg(), ("part", "left")), started(iter(dict.fromkeys(range(9))), 2), iter(table))
    keys, over = started(iter(table), 2), at(arg(), ("part", "over"))
    assert one("id", table, over)(keys) and one("id", None, over)(started(iter({})))
    del table[3]
    assert not one("eq", 7, at(arg(), ("ahead", 0)))(keys)
    assert not one("eq", 1, at(arg(), ("part", "left")))(keys)
    table[9] = 0  # one more than there were
    assert not one("eq", 7, at(arg(), ("ahead", 0)))(keys)


def test_parts_of_iterators():
    for made in (list, tuple, lambda x: list(reversed(list(x))), lambda x: range(9)):
        reads(at(arg(), ("part", "left")), started(iter(made(range(9))), 2), started(iter(made(range(9)))))
    over = [1, 2]
    for iterator in (iter(over), started(iter(over), 2), reversed(over)):
        assert one("id", over, at(arg(), ("part", "over")))(iterator)
        assert not one("id", [1, 2], at(arg(), ("part", "over")))(iterator)
        assert one("id", None, at(arg(), ("part", "over")))(started(iterator, 3))
    assert not one("id", None, at(arg(), ("part", "over")))(iter(()))
    reads(at(arg(), ("part", "index")), enumerate("a", 7), enumerate("a"), enumerate("a", sys.maxsize), zip())
    assert one("id", over, at(arg(), ("part", "inner"), ("part", "over")))(enumerate(over))
    assert one("id", over, at(arg(), ("part", "inner"), ("item", 1), ("part", "over")))(zip("ab", over))
    strict = one("eq", True, at(arg(), ("part", "strict")))
    assert strict(zip([], strict=True)) and not strict(zip([])) and not strict(enumerate([]))


def test_missing_arguments_are_a_mismatch():
    tree = native.GuardTree((((-1, "arg", 3, ((0, "type", int),), -1),), 0))
    assert tree.check(1, 2, 3) is None and tree.explain(1) == 0
    assert tree.check(1, 2, 3, 4) == ()


# ------------------------------------------------------------------------------------------------ checks


def test_type():
    guard = one("type", int)
    assert guard(3) and not guard(True) and not guard(3.0) and not guard(Hostile())


def test_id():
    value = Plain()
    assert one("id", value)(value) and not one("id", value)(Plain())
    assert one("id", None)(None) and not one("id", None)(0)
    assert one("id", len)(len)


def test_id_does_not_keep_its_object_alive():
    value = Plain()
    ref, tree = weakref.ref(value), native.GuardTree((((-1, "arg", 0, ((0, "id", value),), -1),), 0))
    assert tree.check(value) == ()
    del value
    assert ref() is None
    assert all(tree.check(x) is None for x in [None, Plain(), Plain()])


LEAVES = [
    None, True, False, 0, 1, 2**70, 0.0, -0.0, 1.0, math.nan, math.inf, 0j, complex(0.0, -0.0), complex(math.nan, 1),
    "", "text", b"text", (), (1, "a"), (1.0, "a"), (True, "a"), (0.0,), (-0.0,), ((math.nan,),), frozenset({1, 2}),
    slice(1, 2), slice(1.0, 2), range(3), Ellipsis, torch.float32, torch.float64, torch.strided, torch.device("cpu"),
    torch.device("meta"), torch.Size([1, 2]), (1, 2),
]  # fmt: skip


def test_eq_is_exact():
    def same(a, b):
        return type(a) is type(b) and repr(a) == repr(b)

    for value in LEAVES:
        guard = one("eq", value)
        for other in LEAVES:
            assert guard(other) == same(value, other), (value, other)
    assert (
        one("eq", math.nan)(float("nan"))
        and one("eq", 2**70)(2**70 + len(""))
        and one("eq", "text")("te" + "xt"[:])
    )
    assert not one("eq", 1)(Hostile())


def test_eq_rejects_objects():
    for value in (Plain(), (1, Plain()), [1], {}, {1}, ([],)):
        with pytest.raises(TypeError, match="constant"):
            one("eq", value)


class Subclass(torch.Tensor):
    pass


def test_tensor():
    x = torch.ones(2, 3)
    guard = one("tensor", tensor_facts(x))
    assert guard(x) and guard(torch.zeros(2, 3)) and guard(torch.zeros(4, 3)[2:])
    others = [
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2),
        torch.ones(6),
        torch.ones(2, 3, 1),
        torch.ones(3, 2).t(),
        torch.ones(2, 6)[:, ::2],
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3, requires_grad=True) * 1,
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3).to_sparse(),
        torch.ones(2, 3).as_subclass(Subclass),
        nn.Parameter(torch.ones(2, 3), requires_grad=False),
        torch._neg_view(torch.ones(2, 3)),
        torch.ones(2, 3, dtype=torch.complex64),
        None,
        3,
        Hostile(),
    ]
    with torch.inference_mode():
        others.append(torch.ones(2, 3))
    for _ in range(2):
        for other in others:
            assert not guard(other), type(other)
        assert guard(x)
    for other in others[:-4] + others[-1:]:
        own = one("tensor", tensor_facts(other))
        assert own(other) and not own(x) and own(other)


def test_tensor_conjugate_and_sparse():
    z = torch.ones(2, dtype=torch.complex64)
    assert one("tensor", tensor_facts(z))(z) and not one("tensor", tensor_facts(z))(z.conj())
    assert one("tensor", tensor_facts(z.conj()))(z.conj())
    csr, csc = torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_csc()
    assert one("tensor", tensor_facts(csr))(csr) and not one("tensor", tensor_facts(csr))(csc)


def test_tensor_changed_in_place():
    p = nn.Parameter(torch.ones(2))
    guard = one("tensor", tensor_facts(p))
    assert guard(p)
    p.requires_grad_(False)
    assert not guard(p)
    p.requires_grad_(True)
    assert guard(p)
    p.data = torch.ones(3)
    assert not guard(p)
    p.data = torch.ones(2, dtype=torch.float64)
    assert not guard(p)


def test_tensors_inside_functorch_are_others():
    x = torch.ones(2)
    tree = one("tensor", tensor_facts(x)).tree
    accepted = []

    def f(y):
        accepted.append(tree.check(y))
        return y.sum()

    torch.func.vmap(f)(torch.ones(3, 2))
    torch.func.grad(f)(x)
    assert accepted == [None, None] and tree.check(x) is not None


def test_len():
    guard = one("len", 2)
    for good, bad in (
        ([1, 2], [1]),
        ((1, 2), ()),
        ({1: 1, 2: 2}, {}),
        ({1, 2}, {1}),
        (frozenset({1, 2}), frozenset()),
        (collections.deque([1, 2]), collections.deque()),
        ("ab", "a"),
        (range(2), range(3)),
    ):
        assert guard(good) and not guard(bad)

    class List(list):
        __len__ = lambda self: pytest.fail("user code ran")

    assert guard(List([1, 2])) and not guard(List())
    assert native.GuardTree((((-1, "arg", 0, ((0, "len", 2),), -1),), 0)).check(Hostile()) is None


def test_keys_are_ordered():
    d = {"a": 1, "b": 2}
    guard = one("keys", ("a", "b"))
    assert guard(d) and guard(d)
    d["a"] = 5
    assert guard(d)
    d["c"] = 1
    assert not guard(d)
    del d["c"]
    assert guard(d)
    assert not guard({"b": 2, "a": 1}) and not guard({}) and not guard([])
    assert one("keys", (1, ("x", 2)))({1: 0, ("x", 2): 0}) and not one("keys", (1,))({True: 0})


def test_keys_of_an_ordered_dict_follow_its_own_order():
    od = collections.OrderedDict(a=1, b=2)
    tree = one("keys", ("a", "b")).tree
    assert tree.check(od) == ()
    od.move_to_end("a")
    assert tree.check(od) is None
    od.move_to_end("b")
    assert tree.check(od) == ()


def test_contains():
    d, s = {"a": 1}, {"a"}
    yes, no = one("contains", ("a", True)), one("contains", ("a", False))
    assert yes(d) and yes(d) and not no(d) and yes(s) and not no(s)
    d.clear(), s.clear()
    assert no(d) and no(d) and not yes(d) and no(s) and not yes(s)
    d["a"] = 2
    assert yes(d) and not no(d)


def test_keys_of_a_set_are_its_elements_in_order():
    guard = one("keys", tuple({8, 0}))
    assert guard({8, 0}) and not guard({8}) and not guard({8, 1}) and not guard({8.0, 0})
    assert not guard({0, 8}) and guard(frozenset([8, 0]))
    f, g = (lambda: 0), (lambda: 0)
    assert one("keys", (f,))({f}) and not one("keys", (f,))({g})


def test_equal_frozensets_are_alike_in_order_and_types():
    guard = one("eq", frozenset([8, 0]))
    assert guard(frozenset([8, 0])) and not guard(frozenset([0, 8])) and not guard(frozenset([8, False]))


def test_contains_runs_no_python_code():
    class Key:
        hashed = compared = 0

        def __hash__(self):
            Key.hashed += 1
            return hash("a")

        def __eq__(self, other):
            Key.compared += 1
            return True

    class Member(enum.Enum):
        ONE = 1

    for key in (Key(), ("a", Key()), frozenset([Key()])):
        with pytest.raises(TypeError, match="without Python code"):
            one("contains", (key, True))
    guard = one("contains", ("a", False))
    Key.hashed = Key.compared = 0
    assert guard.tree.check({Key()}) == () and Key.compared == 0
    for key in (Member.ONE, int, len, object(), (1, "a"), frozenset([1]), 1.5, None):
        assert one("contains", (key, True))({key: 1}) and one("contains", (key, True))({key})
        assert one("contains", (key, False))({2: 1}) and one("contains", (key, False))({2})
    assert one("contains", (1, True))({True}) and one("contains", (1, True))({1.0: 0})


def test_not_in_dict():
    guard = one("not_in_dict", "forward")
    for make in (Plain, nn.Linear.__new__, lambda: types.ModuleType("m")):
        x = make() if make is not nn.Linear.__new__ else nn.Linear(1, 1)
        assert guard(x) and guard(x)
        x.__dict__["forward"] = 1
        assert not guard(x)
        del x.__dict__["forward"]
        assert guard(x)
    inline = Plain(a=1)
    assert guard(inline)
    inline.forward = 2
    assert not guard(inline)
    assert guard(3)


def test_no_attr():
    guard = one("no_attr", "extra")
    model = nn.BatchNorm1d(2)
    assert guard(model) and guard(model)
    for name, value in (("_parameters", None), ("_buffers", None), ("_modules", None)):
        getattr(model, name)["extra"] = value
        assert not guard(model)
        del getattr(model, name)["extra"]
        assert guard(model)
    model.__dict__["extra"] = 1
    assert not guard(model)
    assert guard(Plain()) and not guard(Plain(extra=1))


def test_slot():
    filled, empty = one("slot", ("x", True)), one("slot", ("x", False))
    assert filled(Slotted(1)) and not empty(Slotted(1))
    without = Slotted(1)
    del without.x
    assert empty(without) and not filled(without)
    for other in (Plain(x=1), 3, property(lambda self: 1)):
        assert not filled(other) and not empty(other)


def test_no_hooks():
    guard = one("no_hooks", None)
    model = nn.Linear(1, 1)
    assert guard(model) and guard(model)
    for register in (
        lambda: model.register_forward_hook(print),
        lambda: model.register_forward_pre_hook(print),
        lambda: model.register_full_backward_hook(print),
        lambda: model.register_full_backward_pre_hook(print),
    ):
        handle = register()
        assert not guard(model)
        handle.remove()
        assert guard(model)
    assert native.GuardTree((((-1, "arg", 0, ((0, "no_hooks", None),), -1),), 0)).check(Plain()) is None


def test_unhooked_leaf():
    guard = one("unhooked_leaf", None)
    w = torch.ones(2, requires_grad=True)
    assert guard(w) and guard(torch.ones(2)) and not guard(w * 2) and not guard(3)
    for handle in (w.register_hook(lambda g: g), w.register_post_accumulate_grad_hook(lambda p: None)):
        assert not guard(w)
        handle.remove()
    assert guard(w)
    accumulates = w.expand_as(w).grad_fn.next_functions[0][0]
    assert guard(w)
    accumulates.register_prehook(lambda given: given)
    assert not guard(w) and not native.is_unhooked_leaf(w)
    del accumulates  # with its hooks
    assert guard(w) and native.is_unhooked_leaf(w)


def test_write_restriction():
    w = torch.ones(2, 2, requires_grad=True)
    computed = w * 1
    with torch.no_grad():
        unseen, of_plain = computed[0], torch.ones(2, 2)[0]
    kinds = [
        [computed, computed[0], torch.ones(2), torch.ones(2)[:1], computed.detach()],
        [w],
        [w[0], torch.ones(2, 2)[0].requires_grad_()],
        [computed.unbind()[0], unseen, unseen[:1], of_plain],
    ]
    for how, tensors in enumerate(kinds):
        for t in tensors:
            assert native.write_restriction(t) == how
            assert [bool(one("write_restriction", i)(t)) for i in range(4)] == [i == how for i in range(4)]
    assert native.write_restriction(3) == -1 and not one("write_restriction", 0)(3)


def test_type_version():
    class Base:
        pass

    class C(Base):
        x = 1

    def guard():
        return one("type_version", ClassFacts(native.type_version(C)))

    first = guard()
    assert native.type_version(C) != 0 and first(C) and first(C) and not first(Base)
    Base.y = 2
    assert (
        native.GuardTree((((-1, "arg", 0, ((0, "type_version", (0, frozenset(), ())),), -1),), 0)).check(C)
        is None
    )
    assert not first(C)
    second = guard()
    assert second(C)
    C.forward = lambda self: 0
    assert not second(C)
    with pytest.raises(TypeError):
        native.type_version(3)


def test_function():
    def f(a, b=2, *, k=3):
        return a

    guard = one("function", (f.__code__, f.__defaults__, f.__kwdefaults__))
    assert guard(f)
    defaults, f.__defaults__ = f.__defaults__, (3,)
    assert not guard(f)
    f.__defaults__ = defaults
    assert guard(f)
    f.__kwdefaults__ = None
    assert not guard(f)
    g = lambda a: a
    bare = one("function", (g.__code__, None, None))
    assert bare(g)
    g.__code__ = (lambda b: b).__code__
    assert not bare(g)
    assert not native.GuardTree((((-1, "arg", 0, ((0, "function", (1, None, None)),), -1),), 0)).check(len)


def test_alias_distinct_and_no_overlap():
    a, b, c = arg(0), arg(1), arg(2)
    x, y, z = Plain(), Plain(), Plain()
    alias = Guarded(("alias", a, b))
    assert alias(x, x) and not alias(x, y)
    distinct = Guarded(("distinct", a, (a, b, c)))
    assert distinct(x, y, z) and distinct(x, y, z) and distinct(z, y, x)
    assert not distinct(x, y, x) and not distinct(x, x, y) and not distinct(x, y, y)
    apart = Guarded(("no_overlap", a, (a, b, c)))
    t, u, v = torch.ones(4), torch.ones(4), torch.ones(4)
    assert (
        apart(t, u, v) and not apart(t, u, t) and not apart(t, u[1:], u[:1]) and not apart(t, u, t.view(2, 2))
    )
    assert apart.tree.check(t, u, 3) is None
    together = Guarded(("shared_storage", a, (a, b, c)))
    assert together(t, t[1:], t.view(2, 2)) and not together(t, u, v) and not together(t, t[:1], u)
    assert together.tree.check(t, t, 3) is None


def test_no_overlap_sees_storages_over_the_same_memory():
    array = torch.ones(8).numpy()
    a, b = torch.from_numpy(array[:6]), torch.from_numpy(array[4:])
    tree = native.GuardTree((((-1, "arg", 0, (), -1), (-1, "arg", 1, ((0, "no_overlap", (0, 1)),), -1)), 0))
    assert tree.check(a, b) is None
    assert tree.check(torch.from_numpy(array[:4]), b) == ()
    assert tree.check(torch.ones(0), torch.ones(0)) == ()


# ------------------------------------------------------------------------------------------- global state


def test_global_state_has_names():
    state = native.global_state()
    assert len(state) == len(native.GLOBAL_STATE) == len(set(native.GLOBAL_STATE))
    assert state == native.global_state() and hash(state) == hash(native.global_state())
    named = dict(zip(native.GLOBAL_STATE, state))
    assert named["grad_mode"] == torch.is_grad_enabled() and named["num_threads"] == torch.get_num_threads()
    with torch.autocast("cpu", dtype=torch.float16):
        inside = dict(zip(native.GLOBAL_STATE, native.global_state()))
    assert (named["autocast_cpu"], inside["autocast_cpu"]) == (0, 1)


class setting:
    """A context in which `get()` is another value, given to `set` before and after."""

    def __init__(self, set, get, value):
        self.set, self.get, self.value = set, get, value

    def __enter__(self):
        self.old = self.get()
        self.set(self.value)

    def __exit__(self, *exc):
        self.set(self.old)


def attribute(owner, name, value):
    return setting(functools.partial(setattr, owner, name), functools.partial(getattr, owner, name), value)


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


CHANGES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_dtype": lambda: setting(
        lambda d: torch.set_autocast_dtype("cpu", d), lambda: torch.get_autocast_dtype("cpu"), torch.float16
    ),
    "autocast_cache": lambda: setting(
        torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled, False
    ),
    "default_dtype": lambda: setting(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "default_device": lambda: torch.device("meta"),
    "deterministic": lambda: setting(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
    "num_threads": lambda: setting(torch.set_num_threads, torch.get_num_threads, torch.get_num_threads() + 1),
    "function_mode": FunctionMode,
    "dispatch_mode": DispatchMode,
    "no_torch_function": torch._C.DisableTorchFunction,
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cudnn": lambda: attribute(torch.backends.cudnn, "enabled", False),
    "cudnn_benchmark": lambda: attribute(torch.backends.cudnn, "benchmark", True),
    "sdp_flash": lambda: setting(
        torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.flash_sdp_enabled, False
    ),
    "sdp_math": lambda: setting(
        torch.backends.cuda.enable_math_sdp, torch.backends.cuda.math_sdp_enabled, False
    ),
    "sdpa_kernel": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "matmul_precision": lambda: setting(
        torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "medium"
    ),
    "precision_of_all": lambda: attribute(torch.backends, "fp32_precision", "tf32"),
    "precision_of_convolutions": lambda: attribute(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_global_state_notices(change):
    tree = native.GuardTree((((-1, "const", None, ((4, "global_state", native.global_state()),), -1),), 0))
    assert tree.check() == () and tree.check() == ()
    with CHANGES[change]():
        assert tree.check() is None and tree.explain() == 4
        inside = native.GuardTree(
            (((-1, "const", None, ((0, "global_state", native.global_state()),), -1),), 0)
        )
        assert inside.check() == ()
    assert tree.check() == () and inside.check() is None


def test_default_devices_are_told_apart():
    def state(device):
        with torch.device(device):
            return native.global_state()

    assert state("meta") == state("meta") != state("cpu")


# ------------------------------------------------------------------------------------------ trees as a whole


def test_collects_in_the_order_asked_for():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    self, x = arg(0), arg(1)
    sources = [
        at(self, ("param", "1"), ("param", "weight")),
        x,
        at(self, ("param", "0"), ("param", "bias")),
    ]
    guarded = Guarded(
        ("type", self, nn.Sequential), ("tensor", x, tensor_facts(torch.ones(2))), collect=sources
    )
    x = torch.ones(2)
    collected = guarded.tree.check(model, x)
    assert [a is b for a, b in zip(collected, (model[1].weight, x, model[0].bias))] == [True] * 3
    assert guarded(model, x) and not guarded(model, torch.ones(3)) and not guarded(nn.Linear(1, 1), x)
    del model[1].weight
    assert guarded.tree.check(model, x) is None


def test_explain_names_the_first_guard_that_fails():
    nodes = (
        (-1, "arg", 0, ((3, "type", Plain),), -1),
        (0, "attr", "x", ((7, "type", int), (8, "eq", 5)), -1),
        (0, "attr", "y", (), -1),
        (2, "attr", "z", ((9, "eq", 6),), 0),
        (-1, "arg", 1, (), 1),
    )
    tree = native.GuardTree((nodes, 2))
    good = Plain(x=5, y=Plain(z=6))
    assert tree.explain(good, 0) is None and tree.check(good, 0) == (6, 0)
    assert tree.explain(3, 0) == 3
    assert tree.explain(Plain(x="s", y=1), 0) == 7
    assert tree.explain(Plain(x=4, y=1), 0) == 8
    assert tree.explain(Plain(x=5), 0) == 9, "a missing object fails the first guard below it"
    assert tree.explain(good) == -1, "nothing is guarded at the missing object"


def test_larger_than_the_local_buffer():
    items = list(range(1000))
    guards = [("eq", at(arg(), ("item", i)), i) for i in items]
    guarded = Guarded(*guards, collect=[at(arg(), ("item", i)) for i in (999, 0)])
    assert guarded.tree.check(items) == (999, 0)
    items[500] = -1
    assert guarded.tree.explain(items) == 500


@pytest.mark.parametrize(
    "spec",
    [
        None,
        (),
        ((), "x"),
        (((-1, "nowhere", 0, (), -1),), 0),
        (((0, "arg", 0, (), -1),), 0),
        (((-1, "attr", "x", (), -1),), 0),
        (((-1, "arg", 0, (), -1), (1, "attr", "x", (), -1)), 0),
        (((-1, "arg", -2, (), -1),), 0),
        (((-1, "arg", "x", (), -1),), 0),
        (((-1, "arg", 0, (), 0),), 0),
        (((-1, "arg", 0, (), -1),), 1),
        (((-1, "arg", 0, (), 0), (-1, "arg", 1, (), 0)), 1),
        (((-1, "arg", 0, (3,), -1),), 0),
        (((-1, "arg", 0, ((0, "nothing", 0),), -1),), 0),
        (((-1, "arg", 0, ((0, "tensor", 3),), -1),), 0),
        (((-1, "arg", 0, ((0, "type", 3),), -1),), 0),
        (((-1, "arg", 0, ((0, "alias", 1),), -1),), 0),
        (((-1, "arg", 0, ((0, "distinct", (0, 4)),), -1),), 0),
        (((-1, "arg", 0, ((0, "global_state", (1, 2)),), -1),), 0),
        (((-1, "arg", 0, ((0, "len", -1),), -1),), 0),
        (((-1, "arg", 0, ((0, "not_in_dict", 3),), -1),), 0),
        (((-1, "arg", 0, ((0, "slot", "x"),), -1),), 0),
        (((-1, "arg", 0, ((0, "slot", (3, True)),), -1),), 0),
        (((-1, "arg", 0, (), -1), (0, "item", [], (), -1)), 0),
    ],
)
def test_malformed_specs_are_rejected(spec):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        native.GuardTree(spec)


def test_trees_take_part_in_garbage_collection():
    owner = Plain()
    owner.tree = native.GuardTree((((-1, "const", owner, ((0, "eq", (1, 2)),), -1),), 0))
    ref = weakref.ref(owner)
    del owner
    gc.collect()
    assert ref() is None


def test_no_leak():
    class Base(nn.Module):
        pass

    model, value, od = Base(), Slotted(7), collections.OrderedDict(a=1)
    model.x, model.lin, model.items, model.od = 1.5, nn.Linear(2, 2), [1, (2, 3)], od
    self, other = arg(0), arg(1)
    guards = [
        ("type", self, Base),
        ("no_hooks", self, None),
        ("not_in_dict", self, "forward"),
        ("no_attr", self, "absent"),
        ("eq", at(self, ("attr", "x")), 1.5),
        ("eq", at(self, ("attr", "items"), ("item", 1)), (2, 3)),
        ("keys", at(self, ("attr", "od")), ("a",)),
        ("tensor", at(self, ("param", "lin"), ("param", "weight")), tensor_facts(model.lin.weight)),
        ("eq", at(other, ("member", "x")), 7),
        ("global_state", None, native.global_state()),
        ("distinct", self, (self, other)),
    ]
    weight = at(self, ("param", "lin"), ("param", "weight"))
    wrong = Slotted(8)
    watched = [model, value, wrong, od, Base, model.lin, model.lin.weight, *(g[2] for g in guards)]

    def run(n):
        for _ in range(n):
            guarded = native.GuardTree(tree_layout.build([Guard(*g) for g in guards], [weight]).native)
            for _ in range(20):
                assert guarded.check(model, value) is not None
                assert guarded.check(model, wrong) is None
                assert guarded.explain(3, value) is not None

    run(20)
    gc.collect()
    gc.collect()  # a collection may leave tuples to the next one that need not be tracked
    before, objects = [sys.getrefcount(x) for x in watched], len(gc.get_objects())
    run(200)
    gc.collect()
    after = [sys.getrefcount(x) for x in watched]
    changes = [b - a for a, b, x in zip(before, after, watched) if x is not None]
    assert max(map(abs, changes)) <= 2, changes
    assert abs(len(gc.get_objects()) - objects) < 20


def test_a_class_that_changes_often_has_versions():
    """CPython 3.13 gives no class more than 1000."""

    class A:
        v = 0

    class B(A):
        pass

    seen = set()
    for i in range(1200):
        A.v = i
        seen.add(native.type_version(B))
        assert native.type_version(B) in seen
    assert len(seen) == 1200 and 0 not in seen
    B.__bases__ = (type("C", (), {"v": 1}),)
    assert native.type_version(B) not in seen
