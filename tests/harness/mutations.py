"""Mutated programs for stored entries: what a second process may find in place of the program that an entry was stored for.

A program is the source of a module that defines `make()`, which returns a function or an `nn.Module`, its positional
arguments and its keyword arguments. `edits` changes the source at one place; `CHANGES` change the loaded program or the
settings of torch before the call. A stored entry that accepts the call of a mutated program must do what the program does.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt import _native, config
from smelt.capture.driver import cache_entries
from smelt.runtime.compiled_callables import native_callable
from smelt.warm import entry_store, first_calls
from tests.harness.agreement import Observed, compare, observe, tensors

NAME = "smelt_mutated_program"  # of the module in every version: entries find it by name

PROGRAMS: dict[str, str] = {
    "functions": """
import torch, torch.nn.functional as F
SCALE = 2.0
NAMES = ["a", "b"]
TABLE = {"relu": torch.relu, "gelu": F.gelu}
def inner(x, k=3, *, bias=0.5):
    return F.relu(x) * SCALE + k - bias
def outer(x, y, mode="a"):
    if mode == NAMES[0]:
        x = inner(x) + TABLE["gelu"](y)
    else:
        x = inner(y, bias=1.5)
    return {"sum": x + y, "parts": [x * 0.25, (y.mean(-1), mode)]}
def make():
    return outer, (torch.randn(4, 6), torch.randn(4, 6)), {}
""",
    "closure": """
import math, torch
def build(n, power):
    weights = [i * 0.5 + 1 for i in range(n)]
    def scaled(x):
        return x * weights[-1] + math.sqrt(power)
    def run(x, y):
        for w in weights:
            x = scaled(x) - w * y.sin()
        return x.softmax(-1), x.argmax(-1)
    return run
def make():
    return build(3, 2.0), (torch.randn(5, 4), torch.randn(5, 4)), {}
""",
    "module": """
import torch
from torch import nn
import torch.nn.functional as F
class Block(nn.Module):
    factor = 1.5
    def __init__(self, width, act):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.act = act
        self.drop = nn.Dropout(0.25)
        self.scale = 0.7
    @staticmethod
    def shift(x):
        return x + 0.125
    @property
    def gain(self):
        return self.scale * 2
    def forward(self, x):
        return x + self.drop(self.act(self.norm(self.linear(x)))) * self.gain * self.factor
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8, nn.GELU()), Block(8, nn.SiLU())])
        self.head = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.register_buffer("offset", torch.ones(4))
        self.options = {"clip": 0.9, "flags": (1, 2)}
    def pool(self, x, dim=-2):
        return x.mean(dim)
    def forward(self, x, scale=1.0):
        for block in self.blocks:
            x = block.shift(block(x))
        x = self.head(self.pool(x)) * scale + self.offset
        return x.clamp(-self.options["clip"], self.options["clip"])
def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(2, 3, 8),), {"scale": 2.0}
""",
    "convolution": """
import torch
from torch import nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, stride=1)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.slope = 0.1
    def forward(self, x):
        x = F.leaky_relu(self.norm(self.conv(x)), self.slope)
        x = F.max_pool2d(x, 2)
        return self.pool(x).flatten(1), x.shape
def make():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 3, 8, 8),), {}
""",
    "attention": """
import torch
from torch import nn
import torch.nn.functional as F
class Attention(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
    def split(self, x):
        b, n, _ = x.shape
        return x.view(b, n, self.heads, self.width // self.heads).transpose(1, 2)
    def forward(self, x, mask=None, causal=True):
        q, k, v = map(self.split, self.qkv(x).chunk(3, -1))
        if mask is not None:
            mask = mask[:, None, None, :] > 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)
        return self.out(y.transpose(1, 2).flatten(2))
def make():
    torch.manual_seed(0)
    return Attention().eval(), (torch.randn(2, 5, 16),), {"mask": torch.ones(2, 5)}
""",
    "writes": """
import torch
class State:
    def __init__(self):
        self.count, self.total, self.seen = 0, torch.zeros(3), []
    def add(self, x):
        self.count += 2
        self.total = self.total + x * self.count
        return self.total
state = State()
def step(x, out):
    y = state.add(x.sum(0))
    out.mul_(0.5).add_(y)
    return out, y * 2
def make():
    global state
    state = State()
    return step, (torch.randn(4, 3), torch.ones(3)), {}
""",
    "classes": """
import dataclasses, enum, torch
from typing import NamedTuple
class Mode(enum.Enum):
    SUM = 1
    MEAN = 2
@dataclasses.dataclass
class Options:
    mode: Mode = Mode.MEAN
    dim: int = -1
    rate: float = 0.25
class Out(NamedTuple):
    value: torch.Tensor
    label: str
class Base:
    bias = 1.0
    def lift(self, x):
        return x + self.bias
class Derived(Base):
    def __init__(self, options):
        self.options = options
    def __call__(self, x):
        x = super().lift(x) * self.options.rate
        x = x.sum(self.options.dim) if self.options.mode is Mode.SUM else x.mean(self.options.dim)
        return x
def run(x, reduce):
    return Out(reduce(x), reduce.options.mode.name)
def make():
    return run, (torch.randn(3, 5), Derived(Options())), {}
""",
    "breaks": """
import torch
import smelt
LIMIT = 0.5
def inner(x, power):
    y = x * 2 + power
    if y.sum() > LIMIT:
        return y.exp()
    return y - 1
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.rate = torch.nn.Linear(4, 4), 0.5
    def forward(self, x, names):
        y = inner(self.linear(x).abs(), 3) * self.rate
        smelt.graph_break()
        for name in names:
            y = y + len(name)
        return {"y": y, "names": names[-1]}
def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.ones(2, 4), ["a", "bb"]), {}
""",
    "containers": """
import torch
from collections import OrderedDict
config = OrderedDict(width=2, names=("x", "y"), table={"x": 0.5, "y": 1.5}, order=[1, 0])
def run(xs, **extra):
    parts = [xs[name] * config["table"][name] for name in config["names"]]
    parts = [parts[i] for i in config["order"]]
    if "shift" in extra:
        parts[0] = parts[0] + extra["shift"]
    total = sum(parts[:config["width"]])
    return {k: total * i for i, k in enumerate(extra)}, parts
def make():
    return run, ({"x": torch.randn(3), "y": torch.randn(3)},), {"shift": 2, "other": None}
""",
}


@dataclass(frozen=True)
class Loaded:
    """A program in this process."""

    module: types.ModuleType
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Way:
    """How programs are compiled and called: with symbolic sizes, or with gradients."""

    dynamic: bool | None = None
    gradients: bool = False

    def observed(self, program: Loaded, target: Callable[..., Any]) -> Any:
        """The result of a call; with gradients, those of the sum of its results too."""
        result = target(*program.args, **program.kwargs)
        if not self.gradients:
            return result
        floats = [t for t in tensors(result) if t.requires_grad]
        leaves = [
            t
            for t in tensors([program.args, program.kwargs, program.target])
            if t.requires_grad and t.is_leaf
        ]
        if not floats or not leaves or not torch.is_grad_enabled():
            return result
        loss = sum((t.double() * torch.arange(1, t.numel() + 1).view(t.shape).cos()).sum() for t in floats)
        return result, torch.autograd.grad(loss, leaves, allow_unused=True)


WAYS = {"": Way(), "symbolic sizes": Way(dynamic=True), "gradients": Way(gradients=True)}
WITHOUT_GRADIENTS = ("writes",)  # programs that write to their arguments, which would be leaves


def load(source: str | ast.Module, way: Way | None = None) -> Loaded:
    """Run a program's module, under `NAME`, and its `make`. Raises what the program raises. With gradients, its arguments
    require them."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    exec(compile(source, f"/{NAME}.py", "exec"), vars(module))
    torch.manual_seed(1)
    target, args, kwargs = module.make()
    if not callable(target):
        raise TypeError("no program")
    for tensor in tensors([args, kwargs]) if way is not None and way.gradients else ():
        if tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_()
    return Loaded(module, target, args, kwargs)


# ------------------------------------------------------------------------------------------------------- edits of sources

_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Gt: ast.LtE, ast.Lt: ast.GtE, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_FUNCTIONS = {
    "relu": "sigmoid", "gelu": "relu", "sin": "cos", "mean": "sum", "sum": "mean", "softmax": "log_softmax", "sqrt": "exp",
    "argmax": "argmin", "leaky_relu": "elu", "GELU": "ReLU", "SiLU": "ReLU", "Tanh": "Sigmoid", "max_pool2d": "avg_pool2d",
    "add_": "sub_", "mul_": "add_", "SUM": "MEAN", "MEAN": "SUM",
}  # fmt: skip


def edits(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Each version of a program with one change: its description and its tree."""
    count = sum(1 for _ in ast.walk(ast.parse(source)))
    for number in range(count):
        for variant in range(3):
            tree = ast.parse(source)
            node = next(n for i, n in enumerate(ast.walk(tree)) if i == number)
            what = _edit(node, variant)
            if what is not None:
                yield f"{type(node).__name__} at line {getattr(node, 'lineno', '?')}: {what}", tree


def _edit(node: ast.AST, variant: int) -> str | None:
    """Change a node in place and say how; None if the variant does not apply."""
    if isinstance(node, ast.Constant):
        return _edit_constant(node, variant)
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS and not variant:
        node.op = _OPERATORS[type(node.op)]()
        return f"to {type(node.op).__name__}"
    if isinstance(node, ast.BoolOp) and not variant:
        node.op = _OPERATORS[type(node.op)]()
        return f"to {type(node.op).__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS and not variant:
        node.ops[0] = _OPERATORS[type(node.ops[0])]()
        return f"to {type(node.ops[0]).__name__}"
    if isinstance(node, ast.Attribute) and node.attr in _FUNCTIONS and not variant:
        node.attr = _FUNCTIONS[node.attr]
        return f"to {node.attr}"
    if isinstance(node, ast.Call) and len(node.args) > 1 and not variant:
        node.args.reverse()
        return "arguments reversed"
    if isinstance(node, ast.Call) and node.keywords and variant == 1:
        node.keywords.pop()
        return "a keyword less"
    if isinstance(node, ast.FunctionDef) and len(node.body) > 1 and not variant:
        del node.body[0]
        return f"a statement less in {node.name}"
    if isinstance(node, ast.If) and not variant:
        node.body, node.orelse = node.orelse or [ast.Pass()], node.body
        return "branches swapped"
    if isinstance(node, ast.Return) and node.value is not None and not variant:
        node.value = ast.Tuple([node.value], ast.Load())
        ast.fix_missing_locations(node)
        return "in a tuple"
    return None


def _edit_constant(node: ast.Constant, variant: int) -> str | None:
    value: Any = node.value
    if isinstance(value, bool):
        changes: list[Any] = [not value]
    elif isinstance(value, int):
        changes = [value + 1, -value - 1, float(value)]
    elif isinstance(value, float):
        changes = [value + 0.25, -value, int(value)]
    elif isinstance(value, str):
        changes = [value + "x"]
    elif value is None:
        changes = [0]
    else:
        changes = []
    if variant >= len(changes):
        return None
    node.value = changes[variant]
    return f"to {changes[variant]!r}"


# ------------------------------------------------------------------------------------------ changes of a loaded program

Change = Callable[[Loaded], "contextlib.AbstractContextManager[object] | None"]


def _modules(program: Loaded) -> list[nn.Module]:
    return list(program.target.modules()) if isinstance(program.target, nn.Module) else []


def _is_inner(program: Loaded, value: Any) -> bool:
    """Whether `value` is a function of the program that its target may call."""
    own = isinstance(value, types.FunctionType) and value.__module__ == NAME
    return own and value is not program.target and value.__name__ != "make"


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def _setting(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _other_function(*args: Any, **kwargs: Any) -> Any:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return tensors[0] * 3 if tensors else None


def _replaced_code(function: types.FunctionType) -> contextlib.AbstractContextManager[None]:
    return _setting(
        lambda: function.__code__,
        lambda code: setattr(function, "__code__", code),
        (lambda *a, **k: a[0] * 3).__code__,
    )


def _changes() -> Iterator[tuple[str, Change]]:
    def hooked(register: str, hook: Callable[..., Any]) -> Change:
        def change(program: Loaded) -> contextlib.AbstractContextManager[object]:
            stack = contextlib.ExitStack()
            for module in _modules(program)[-1:]:
                stack.callback(getattr(module, register)(hook).remove)
            return stack

        return change

    yield "forward hook", hooked("register_forward_hook", lambda m, a, out: out * 2)
    yield "forward pre-hook", hooked("register_forward_pre_hook", lambda m, a: (a[0] * 2,))
    yield "backward hook", hooked("register_full_backward_hook", lambda m, a, b: None)

    def global_hook(program: Loaded) -> contextlib.AbstractContextManager[object]:
        stack = contextlib.ExitStack()
        stack.callback(nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2).remove)
        return stack

    yield "global hook", global_hook
    for index in range(3):

        def training(program: Loaded, index: int = index) -> None:
            for module in _modules(program)[index : index + 1]:
                module.train()

        yield f"training of module {index}", training

        def forward(program: Loaded, index: int = index) -> None:
            for module in _modules(program)[index : index + 1]:
                module.forward = lambda x, *a, **k: x * 2

        yield f"forward of module {index} overridden", forward
    for dtype in (torch.float64, torch.bfloat16):

        def converted(program: Loaded, dtype: torch.dtype = dtype) -> None:
            for module in _modules(program)[:1]:
                module.to(dtype)

        yield f"parameters as {dtype}", converted

    def swapped(program: Loaded) -> None:
        for module in _modules(program):
            for name, child in list(module._modules.items()):
                if isinstance(child, (nn.GELU, nn.SiLU, nn.Tanh)):
                    module._modules[name] = nn.ReLU()

    yield "submodules swapped", swapped

    def fewer(program: Loaded) -> None:
        for module in _modules(program):
            if isinstance(module, nn.ModuleList):
                del module[-1]

    yield "a block less", fewer

    def attribute(program: Loaded) -> None:
        for module in _modules(program):
            for name, value in list(vars(module).items()):
                if type(value) is float:
                    setattr(module, name, value + 0.25)

    yield "float attributes", attribute

    def integers(program: Loaded) -> None:
        for module in _modules(program):
            for name, value in list(vars(module).items()):
                if type(value) is int:
                    setattr(module, name, value + 1)

    yield "integer attributes", integers

    def tied(program: Loaded) -> None:
        linears = [m for m in _modules(program) if isinstance(m, nn.Linear)]
        for a in linears[1:]:
            if a.weight.shape == linears[0].weight.shape:
                a.weight = linears[0].weight

    yield "tied weights", tied

    def frozen(program: Loaded) -> None:
        for module in _modules(program)[:1]:
            module.requires_grad_(False)

    yield "parameters without gradients", frozen

    def globals_changed(program: Loaded) -> None:
        for name, value in list(vars(program.module).items()):
            if type(value) in (int, float):
                setattr(program.module, name, value + 1)

    yield "global numbers", globals_changed

    def global_functions(program: Loaded) -> None:
        for name, value in list(vars(program.module).items()):
            if _is_inner(program, value):
                setattr(program.module, name, _other_function)

    yield "global functions replaced", global_functions

    def global_code(program: Loaded) -> None:
        for value in list(vars(program.module).values()):
            if _is_inner(program, value):
                value.__code__ = _other_function.__code__

    yield "code of global functions replaced", global_code

    def defaults(program: Loaded) -> None:
        for value in list(vars(program.module).values()):
            if _is_inner(program, value) and value.__defaults__:
                value.__defaults__ = tuple(7 if type(d) is int else d for d in value.__defaults__)
            if _is_inner(program, value) and value.__kwdefaults__:
                value.__kwdefaults__ = dict.fromkeys(value.__kwdefaults__, 0.75)

    yield "defaults", defaults

    def methods(program: Loaded) -> None:
        for value in list(vars(program.module).values()):
            for name, method in list(vars(value).items()) if isinstance(value, type) else ():
                if isinstance(method, types.FunctionType) and not name.startswith("__"):
                    setattr(value, name, lambda self, x, *a, **k: x)

    yield "methods replaced", methods

    def class_attributes(program: Loaded) -> None:
        for value in list(vars(program.module).values()):
            for name, found in list(vars(value).items()) if isinstance(value, type) else ():
                if type(found) is float:
                    setattr(value, name, found + 1)

    yield "class attributes", class_attributes

    def cells(program: Loaded) -> None:
        for cell in getattr(program.target, "__closure__", None) or ():
            if isinstance(cell.cell_contents, list):
                cell.cell_contents.append(9.0)
            for inner in getattr(cell.cell_contents, "__closure__", None) or ():
                if type(inner.cell_contents) is float:
                    inner.cell_contents += 1

    yield "cells", cells
    for owner, name in (
        (F, "relu"), (F, "gelu"), (F, "softmax"), (F, "layer_norm"), (F, "linear"), (F, "dropout"), (F, "leaky_relu"),
        (F, "scaled_dot_product_attention"), (torch, "relu"), (torch.Tensor, "mean"), (torch.Tensor, "softmax"),
        (torch.Tensor, "sin"), (torch.Tensor, "__add__"), (torch.Tensor, "__mul__"), (torch.Tensor, "transpose"),
        (nn.Linear, "forward"), (nn.LayerNorm, "forward"), (nn.Module, "__call__"), (nn.Module, "_call_impl"),
        (nn.GELU, "forward"), (F, "has_torch_function_unary"), (nn.Conv2d, "_conv_forward"),
    ):  # fmt: skip

        def patched(
            program: Loaded, owner: Any = owner, name: str = name
        ) -> contextlib.AbstractContextManager[None]:
            return _patched(
                owner,
                name,
                lambda x, *a, **k: k.get("input", a[0] if a and type(x) is not torch.Tensor else x),
            )

        yield f"{owner.__name__}.{name} patched", patched
    for function in (
        F.relu,
        F.softmax,
        nn.Linear.forward,
        nn.LayerNorm.forward,
        F.dropout,
        nn.Module._call_impl,
    ):
        yield f"code of {function.__qualname__}", lambda program, f=function: _replaced_code(f)
    settings = (
        ("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        ("grad mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
        ("threads", torch.get_num_threads, torch.set_num_threads, 1 if torch.get_num_threads() > 1 else 2),
        ("deterministic", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
        ("onednn", lambda: torch.backends.mkldnn.enabled, lambda v: setattr(torch.backends.mkldnn, "enabled", v), False),
    )  # fmt: skip
    for title, read, write, value in settings:
        yield title, lambda program, r=read, w=write, v=value: _setting(r, w, v)
    yield "inference mode", lambda program: torch.inference_mode()
    yield "autocast", lambda program: torch.autocast("cpu", torch.bfloat16)
    for option, value in (("fuse", False), ("native_gemm", False), ("threads", 1)):
        yield f"option {option}", lambda program, o=option, v=value: config.set(**{o: v})
    for what, convert in (
        ("float64", lambda t: t.double()), ("a row more", lambda t: torch.cat([t, t[:1]])),
        ("strided", lambda t: torch.stack([t, t], -1)[..., 0]),
        ("requiring gradients", lambda t: t.requires_grad_()), ("a subclass", lambda t: t.as_subclass(nn.Buffer)),
        ("integers", lambda t: t.long()), ("a view", lambda t: torch.stack([t, t])[0]),
    ):  # fmt: skip

        def arguments(program: Loaded, convert: Callable[[torch.Tensor], torch.Tensor] = convert) -> None:
            def changed(x: Any) -> Any:
                if isinstance(x, torch.Tensor):
                    return convert(x)
                return {k: changed(v) for k, v in x.items()} if type(x) is dict else x

            object.__setattr__(program, "args", tuple(map(changed, program.args)))

        yield f"arguments: {what}", arguments

    def same_argument(program: Loaded) -> None:
        object.__setattr__(program, "args", (program.args[0],) * len(program.args))

    yield "one argument for all", same_argument

    def fewer_keywords(program: Loaded) -> None:
        for key in list(program.kwargs)[:1]:
            del program.kwargs[key]

    yield "a keyword less", fewer_keywords


CHANGES: dict[str, Change] = dict(_changes())


# ------------------------------------------------------------------------------------------------------------ the check


@contextlib.contextmanager
def stored(source: str, way: Way = WAYS[""]) -> Iterator[None]:
    """A context in which the entries of a program's first call are stored, in memory, and no others."""
    mode = torch.enable_grad() if way.gradients else torch.no_grad()
    with config.set(warm_start=True, kernel_cache=False), mode:
        entry_store.forget()
        compare(Observed(random=torch.ones(1)), Observed(random=torch.ones(1)))
        program = load(source, way)
        compiled = smelt.compile(program.target, dynamic=way.dynamic)
        way.observed(program, compiled)
        assert smelt.save_cache(os.devnull), f"not stored: {not_kept()}"
        patch = pytest.MonkeyPatch()
        patch.setattr(first_calls.FirstCalls, "compiler", lambda self: lambda fn, slots: False)
        try:
            yield
        finally:
            patch.undo()
            entry_store.forget()


def not_kept() -> list[str]:
    """Why entries of live functions are not stored."""
    return [reason for _, _, record in cache_entries.all_records() for reason in record.not_kept]


def hits(make: Callable[[], Loaded], change: Change | None = None, way: Way = WAYS[""]) -> bool:
    """Whether a stored entry serves the call of a program that `make` loads and `change` changes; calls without an entry run
    eagerly. Raises AssertionError if it does not do what the program does, and what the program raises while it is loaded.
    """
    wanted, _ = _observed(make, change, lambda target: target, way)
    got, compiled = _observed(make, change, functools.partial(smelt.compile, dynamic=way.dynamic), way)
    compare(got, wanted)
    return _native.count(native_callable(compiled)) > 0


def hits_if_it_runs(source: ast.Module, way: Way = WAYS[""]) -> bool:
    """`hits` of an edited program; False if it cannot be loaded."""
    try:
        load(source)
    except Exception:
        return False
    return hits(lambda: load(source, way), way=way)


def _observed(
    make: Callable[[], Loaded], change: Change | None, prepare: Callable[[Any], Any], way: Way
) -> tuple[Observed, Any]:
    program = make()
    with contextlib.ExitStack() as stack:
        context = None if change is None else change(program)
        if context is not None:
            stack.enter_context(context)
        target = prepare(program.target)
        state = program.args, program.kwargs, program.target, vars(program.module).get("state")
        seen = observe(lambda *state: way.observed(program, target), state, 0)
        seen.result, seen.arguments = _plain(seen.result), _plain(seen.arguments)
        return seen, target


def _plain(value: Any, depth: int = 8) -> Any:
    """A value as containers of tensors, numbers and names, so that it compares with one of another load of a program."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.requires_grad else value
    if isinstance(value, dict):
        keys = (
            k if type(k) is str else f"key {i}" for i, k in enumerate(value)
        )  # hooks are numbered in each process
        return {k: _plain(v, depth - 1) for k, v in zip(keys, value.values())} if depth else "..."
    if isinstance(value, (list, tuple)):
        return [type(value).__qualname__, *(_plain(v, depth - 1) for v in value)] if depth else "..."
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return value.__qualname__
    if hasattr(value, "__dict__") and depth:
        return {"class": type(value).__qualname__, "dict": _plain(vars(value), depth - 1)}
    return value
