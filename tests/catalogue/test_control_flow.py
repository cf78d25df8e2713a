"""Statements and expressions: match, loops, unpacking, names, arithmetic, text, slices."""

import collections
import dataclasses
import enum
import math

import torch

from tests.harness.catalogue import program, tensor


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: object
    y: object


class Node:
    __match_args__ = ("value", "next")

    def __init__(self, value, next=None):
        self.value, self.next = value, next


def numbers():
    return [(tensor(3), 0), (tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 5)]


@program(graphs=1, later=7)
def match_literals():
    def fn(x, v):
        match v:
            case 0 | 1:
                return x + 1
            case -3:
                return x - 3
            case 2.5:
                return x * 2.5
            case "text":
                return x * 4
            case b"b":
                return x * 5
            case None:
                return x * 6
            case True:
                return x * 7
            case 1 + 2j:
                return x * 8
            case _:
                return x * 9

    values = [0, 1, True, -3, 2.5, "text", b"b", None]
    return fn, [(tensor(3), v) for v in values]


@program(graphs=1, later=7)
def match_sequences():
    def fn(x, v):
        match v:
            case []:
                return x + 0
            case [a]:
                return x + a
            case [1, (2 | 3) as b, *rest]:
                return x * b + len(rest)
            case (a, *_, [c, d]):
                return x * a + c - d
            case [_, _]:
                return x - 2
            case str() | bytes():
                return x - 3
            case _:
                return x - 4

    values = [[], (5,), [1, 2], (1, 3, 4, 5), [7, 8, [9, 1]], [7, 8], "ab", range(2)]
    return fn, [(tensor(3), v) for v in values]


@program(graphs=1)
def match_own_sequence():
    import collections.abc

    class Three(collections.abc.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return i * 10

    def fn(x, n):
        match Three():
            case [a, b]:
                return x
            case [a, b, c]:
                return x + a + b + c

    return fn, numbers()


@program(graphs=1, later=4)
def match_mappings():
    def fn(x, v):
        match v:
            case {"op": "add", "value": int(n)}:
                return x + n
            case {"op": "scale", **rest}:
                return x * len(rest), rest
            case {1: _, 2: second}:
                return x * second
            case {}:
                return x - 1

    class Sub(dict):
        pass

    values = [
        {"op": "add", "value": 3},
        {"op": "add", "value": 3},
        {"op": "scale", "a": 1, "b": 2},
        {1: 0, 2: 5},
        {},
        Sub(op="q"),
    ]
    return fn, [(tensor(3), v) for v in values]


@program(graphs=1, later=2)
def match_classes():
    def fn(x, n):
        values = [
            Point(1, n),
            Point(n, Point(2, 3)),
            Node(4, Node(5)),
            Node(1),
            Color.BLUE,
            3.0,
            [x],
            {"k": x},
            Color,
        ]
        out = []
        for v in values:
            match v:
                case Point(x=1, y=b):
                    out.append(("p1", b))
                case Point(a, Point(b, c)):
                    out.append(("p2", a, b, c))
                case Node(a, Node(b, None)):
                    out.append(("n2", a, b))
                case Node(value=a):
                    out.append(("n1", a))
                case Color.RED | Color.BLUE as color:
                    out.append(color)
                case float(f):
                    out.append(f)
                case [torch.Tensor() as t]:
                    out.append(t * 2)
                case {"k": torch.Tensor(shape=[s])}:
                    out.append(s)
                case _:
                    out.append("none")
        return out

    return fn, numbers()


@program(graphs=1, later=3)
def match_guards_and_captures():
    def fn(x, n):
        match (n, x.shape):
            case (k, [s]) if k > s:
                return x * k
            case (k, _) if (double := k * 2) > 3:
                return x + double
            case (0, shape):
                return x + len(shape)
            case anything:
                return x - anything[0]

    return fn, numbers()


@program(graphs=1, later=1)
def match_class_errors():
    def fn(x, n):
        out = []
        try:
            match Point(1, 2):
                case Point(a, b, c):
                    pass
        except TypeError as e:
            out.append(str(e))
        try:
            match n:
                case int(a, b):
                    pass
        except TypeError as e:
            out.append(str(e))
        try:
            match n:
                case n.real():
                    pass
        except TypeError as e:
            out.append(str(e))
        try:
            match Point(1, 2):
                case Point(1, x=1):
                    pass
        except TypeError as e:
            out.append(str(e))
        return x + 1, out

    return fn, numbers()


@program(graphs=1, later=3)
def loops_with_else():
    def fn(x, n):
        for i in range(3):
            if i == n:
                break
        else:
            x = x * 100
        while n > 0:
            n -= 1
            if n == 3:
                break
        else:
            x = x + 50
        return x + i

    return fn, numbers()


@program(graphs=1, later=2)
def nested_loops_with_labels_by_flags():
    def fn(x, n):
        out = []
        for i in range(4):
            for j in range(4):
                if j > i:
                    break
                if (i + j) % 2:
                    continue
                out.append(x * i + j)
            else:
                out.append("whole")
                continue
            if i > n:
                break
        return out

    return fn, numbers()


@program(graphs=1, later=3)
def star_expressions():
    def fn(x, n):
        a, *b = x, 1, 2
        *c, d = range(n + 1)
        (e, [f, *g]), h = (1, "abc"), n
        joined = [*b, *c, *"xy", *{n: 1}]
        merged = {**{"a": x}, "b": n, **{"a": x + 1}}
        return (*joined, a * 2), merged, d, e, f, g, h, {*b, *c}

    return fn, numbers()


@program(graphs=1, later=1)
def unpacking_tensors():
    def fn(x, n):
        a, b, c = x
        first, *rest = x * 2
        (p, q), r = torch.split(x, 2)
        return a + b - c, first, rest, p, q, r + n

    return fn, numbers()


@program(graphs=1, later=1)
def swaps_and_chained_assignment():
    def fn(x, n):
        a = b = [x]
        c, d = 1, 2
        c, d = d, c
        items = [0, 1, 2]
        i = 0
        i, items[i] = 2, "set"
        a[0], b = b[0] + n, a
        return a is b, a, c - d, items, i

    return fn, numbers()


@program(graphs=1, later=3)
def augmented_assignment():
    class Box:
        value = 1

    def fn(x, n):
        box, d, l, t = Box(), {"k": 1}, [1], (1,)
        alias = l
        box.value += n
        d["k"] -= n
        l += (2, 3)
        l *= 2
        t += (2,)
        s = {1} | {2}
        s |= {3}
        s &= {1, 3}
        v = 7
        v //= 2
        v **= 2
        v <<= 1
        v %= 10
        v ^= 3
        return x + v, box, d, l is alias, l, t, s, d | {"z": 1}

    return fn, numbers()


@program(graphs=1, later=2)
def walrus():
    def fn(x, n):
        if (y := x * 2).shape[0] > n and (m := n + 1):
            return y, m
        while (n := n - 1) > 2:
            y = y + n
        return y, [z := n, z + 1], z

    return fn, numbers()


@program(graphs=1, later=3)
def chained_comparisons():
    def fn(x, n):
        log = []

        def at(v):
            log.append(v)
            return v

        a = at(0) < at(n) < at(3)
        b = at(0) <= at(n) != at(2) in [2]
        c = 1 < 2 > n is not None
        return x * 2, a, b, c, log

    return fn, numbers()


@program(graphs=1, later=2)
def boolean_operators_return_operands():
    def fn(x, n):
        a = n or "default"
        b = n and [n]
        c = not n
        d = (n > 1 and "big") or (n == 1 and "one") or None
        e = [] or {} or 0 or x
        return a, b, c, d, e * 2, x + 1 if n else x - 1

    return fn, numbers()


@program(graphs=1)
def deletions():
    class Box:
        pass

    def fn(x, n):
        box, d, l = Box(), {"a": 1, "b": x}, [1, 2, 3, 4]
        box.a = box.b = x
        del box.a, d["a"], l[1], l[::2]
        y = x
        del y
        out = []
        try:
            y
        except UnboundLocalError as e:
            out.append(str(e))
        try:
            del box.a
        except AttributeError as e:
            out.append(str(e))
        try:
            del d["q"]
        except KeyError as e:
            out.append(str(e))
        try:
            del l[7]
        except IndexError as e:
            out.append(str(e))
        return x * 2, box, d, l, out

    return fn, numbers()


counter = 0
registry = []


@program(graphs=1, later=2)
def global_statement():
    global counter
    counter = 0

    def fn(x, n):
        global counter
        counter = counter + n
        return x + n

    return fn, numbers(), lambda: counter


@program(graphs=1, later=1)
def global_made_and_deleted():
    globals().pop("temporary", None)

    def fn(x, n):
        global temporary
        temporary = x * 2
        y = temporary + n
        del temporary
        try:
            temporary
        except NameError as e:
            return y, str(e)

    return fn, numbers(), lambda: "temporary" in globals()


@program(graphs=1, later=2)
def nonlocal_statement():
    total = 0

    def fn(x, n):
        nonlocal total
        steps = 0

        def step():
            nonlocal total, steps
            total = total + n
            steps += 1
            return steps

        step()
        return x * step(), steps

    return fn, [(tensor(3), 1), (tensor(3), 1), (tensor(3), 1), (tensor(3), 2)]


@program(graphs=1, later=3)
def integer_arithmetic():
    def fn(x, n):
        big = 2**100 + n
        values = [
            7 // 2, -7 // 2, 7 % -3, -7 % 3, divmod(-7, 2), big % 97, big >> 90, big.bit_length(), -big // 10**20, pow(3, 50, 7),
            1 << 70, n ^ 5, n & 3, n | 8, ~n, abs(-n), int("ff", 16), int.from_bytes(b"\x01\x02", "big"), (300).to_bytes(2, "little"),
            round(2.5), round(-3.5), round(1234, -2), 10**25, math.isqrt(10**30), math.gcd(12, 18), True + True, -(-5 // 2), n**2,
            hash(2**61 - 1), hash(-1), (5).conjugate(), n.bit_count(), math.comb(10, 3), math.prod([2, 3, n]),
        ]  # fmt: skip
        return x * (big % 5), values

    return fn, numbers()


@program(graphs=1, later=3)
def float_and_complex_arithmetic():
    def fn(x, n):
        f = n + 0.1
        values = [
            0.1 + 0.2, 1e308 * 10, -(1e308) * 10, float("nan"), 7.5 // 2, -7.5 % 2, divmod(7.5, -2), 2**0.5, round(2.675, 2), f.hex(),
            (0.5).as_integer_ratio(), float("1e-5"), math.floor(-1.5), math.ceil(1.2), math.trunc(-1.7), math.fmod(-7, 3), -0.0,
            math.copysign(1, -0.0), 1 / 3, (1 + 2j) * (3 - 1j), abs(3 + 4j), (1j) ** 2, complex(1, n).real, math.inf, math.exp(n),
            math.log(8, 2), math.sin(1), math.hypot(3, 4), f.is_integer(), min(1, 1.0), max(1.0, 1), sum([0.1] * 3), 1 == 1.0, 0.0 == -0.0,
        ]  # fmt: skip
        return x * f, values

    return fn, numbers()


@program(graphs=1, later=3)
def text():
    def fn(x, n):
        name, value = "smelt", 3.14159
        values = [
            f"{name!r:>10}|{value:.2f}|{n:05d}|{n!s}", f"{name:^{n + 8}}", f"{value=}", f"{n:+} {n:#x} {n:b} {1000000:,} {value:e} {0.25:%}",
            "%s %r %05.1f %d%%" % (name, name, value, n), "{0} {1!r} {k[0]} {z.real}".format(n, name, k=[1], z=n), name.upper().center(9, "*"),
            "a,b,,c".split(","), " x ".strip() + name[::-1] + name[1:-1], "-".join([name, "b"]), name.replace("s", "z", 1), "abc".find("c"),
            "a b".title(), "x" * n, name < "t", "me" in name, ord("a"), chr(98), "é".encode(), b"ab".decode(), ascii("é"), "a\tb".expandtabs(4),
            "abc".partition("b"), "1 2".rsplit(None, 1), "ab".zfill(4), name.startswith(("a", "s")), "%(a)s" % {"a": n}, name.casefold(),
            "abc".translate({97: "z"}), "l1\nl2".splitlines(), str([1, "a", None, 2.5]), repr({"k": (1,)}), str(b"x"), f"{[i for i in range(n)]}",
            f"{x.shape}", str(x.dtype), f"{Color.RED}", repr(Color.RED), str(Point(1, n)), f"{{}} {'nested'!r}", "a" "b", r"\n", f"{None}{...}",
        ]  # fmt: skip
        return x + len(values), values

    return fn, numbers()


@program(graphs=1, later=3)
def bytes_and_bytearrays():
    def fn(x, n):
        b = bytes([1, 2, n])
        a = bytearray(b)
        a.append(7)
        a[0] = 9
        a += b"xy"
        return (
            x + b[2],
            b + b"z",
            a,
            bytes(a),
            b.hex(),
            a[1:3],
            len(a),
            b"a" in b"cab",
            list(b),
            b"%d" % n,
            memoryview(b)[1],
        )

    return fn, numbers()


@program(graphs=1, later=3)
def slices():
    def fn(x, n):
        l = list(range(6))
        s = slice(1, None, 2)
        l[1:3] = [x.shape[0], "b", "c"]
        l[::3] = ["q"] * len(l[::3])
        t = tuple(l)
        return (
            x[s],
            x[-2:],
            x[::2],
            x[None, ..., :n],
            l,
            t[s],
            t[::-1],
            "text"[s],
            s.indices(5),
            s == slice(1, None, 2),
            range(10)[s],
        )

    return fn, numbers()


@program(graphs=1, later=1)
def tensor_indexing():
    def fn(x, n):
        y = x.view(1, 3).repeat(2, 1)
        y[0, 1] = n
        y[:, 2] += 1
        y[1] = x
        return y, y[0], y[-1, ::2], y[..., 0], y[[1, 0]], y[:, torch.tensor([0, 2])], y[y.shape[0] - 1, None]

    return fn, numbers()


@program(graphs=1, later=3)
def containers_of_containers():
    def fn(x, n):
        d = collections.defaultdict(list)
        for i in range(4):
            d[i % 2].append(x * i)
        c = collections.Counter("banana")
        q = collections.deque(range(5), maxlen=3)
        q.appendleft(x)
        q.rotate(1)
        o = collections.OrderedDict(a=1, b=2)
        o.move_to_end("a")
        named = collections.namedtuple("Named", "a b")(x, n)
        return d, c.most_common(2), q, o, named.a * 2, named._replace(b=5).b, {(1, 2): frozenset([n])}

    return fn, numbers()


@program(graphs=1)
def conditional_imports():
    def fn(x, n):
        import math as m
        from collections import OrderedDict as Ordered

        if n:
            import cmath

            return x * m.pi + abs(cmath.exp(1j)), Ordered(a=n)
        try:
            import no_such_module_at_all
        except ImportError as e:
            return x, str(e), e.name
        return no_such_module_at_all

    return fn, [(tensor(3), 1), (tensor(3), 1), (tensor(3), 0)]


@program(graphs=1, later=1)
def identity_and_singletons():
    def fn(x, n):
        a, b = [x], [x]
        return (
            x + 1,
            a is b,
            a[0] is b[0],
            n is n,
            None is None,
            x is x,
            a == a,
            (1, 2) is not [1, 2],
            type(x) is torch.Tensor,
            ... is Ellipsis,
        )

    return fn, numbers()


@program(graphs=1)
def deep_nesting():
    def fn(x, n):
        nested = x
        for i in range(200):
            nested = [nested]
        depth = 0
        while isinstance(nested, list):
            (nested,) = nested
            depth += 1
        return nested * depth

    return fn, numbers()


@program(graphs=1, later=3)
def long_elif_chain_and_ternaries():
    def fn(x, n):
        if n == 0:
            kind = "zero"
        elif n < 2:
            kind = "small"
        elif n % 2 == 0:
            kind = "even"
        else:
            kind = "odd"
        return (
            x * {"zero": 1, "small": 2, "even": 3, "odd": 4}[kind],
            ("neg" if n < 0 else "nil" if not n else "pos"),
            kind,
        )

    return fn, numbers()


@program(graphs=1, later=1)
def annotations_in_the_body():
    def fn(x, n):
        a: int = n
        b: "not evaluated" = a + 1  # noqa: F722
        c: list[int]
        box = type("Box", (), {})()
        box.attr: int = 5
        try:
            return x * b, c
        except UnboundLocalError as e:
            return x * b, str(e), box.attr

    return fn, numbers()


@program(graphs=1)
def a_name_that_a_module_lacks():
    def fn(x):
        found = []
        try:
            from math import nothing
        except ImportError as e:
            found += [str(e), e.name, e.path]
        try:
            from json import nothing  # noqa: F401
        except ImportError as e:
            found += [str(e), e.name, e.path]
        return x + 1, found

    return fn, [(tensor(3),)] * 3
