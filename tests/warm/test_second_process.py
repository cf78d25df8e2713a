"""A second process finds the entries of the first, imports no compiler, and does what the program does."""

import json
import os

import pytest

from tests.harness.inner_graphs import REFUSED
from tests.harness.processes import start

# Programs in one file, as a user has them; a process calls each and says what it imported.
PROGRAMS = """
import json, random, sys
import torch
import torch.nn.functional as F
from torch import nn
import smelt

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        wide = 2 * width
        self.layers = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Dropout(0.1), nn.Linear(wide, width))
    def forward(self, x, scale=1.0):
        return {"out": x + self.layers(self.norm(x)) * scale, "parts": (x.mean(-1), [x.amax()])}

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))
        self.rows = 0
    def forward(self, x):
        self.calls += x.sum(0)
        self.rows = x.shape[0]
        return x * 2, self.calls.exp()

def nested(x, y):
    def inner(z):
        return z.softmax(-1) * 2
    return inner(x) @ inner(y).T

def branches(x, flag, names):
    for name in sorted(names):
        x = x + len(name)
    return F.relu(x) if flag else torch.sigmoid(x)

def in_place(x, out):
    out.copy_(x * 2)
    return out.add_(1), x.t()

def raises(x, i):
    return x[i] + 1

def sizes(x):
    return x.reshape(-1, x.shape[-1] // 2), x.shape[0], x.dtype

def draws(x):
    return x + random.random(), x * random.randint(1, 9), torch.rand_like(x)

block, counting = Block(8).eval(), Counting()
calls = [
    ("block", block, (torch.randn(4, 8),), {"scale": 0.5}),
    ("counting", counting, (torch.randn(5, 3),), {}),
    ("nested", nested, (torch.randn(3, 4), torch.randn(3, 4)), {}),
    ("branches", branches, (torch.randn(6), True, ["b", "a"]), {}),
    ("in place", in_place, (torch.randn(2, 3), torch.zeros(2, 3)), {}),
    ("raises", raises, (torch.randn(4), torch.tensor([0, 3])), {}),
    ("sizes", sizes, (torch.randn(3, 4),), {}),
    ("draws", draws, (torch.randn(3, 4),), {}),
]

def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else str(value)

def called(name, target, args, kwargs, prepare):
    args = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    before = {k: v.clone() for k, v in target.state_dict().items()} if isinstance(target, nn.Module) else {}
    random.seed(5)
    torch.manual_seed(5)
    results = [plain(prepare(target)(*args, **kwargs)) for _ in range(2)]
    state = plain(dict(target.state_dict())) if isinstance(target, nn.Module) else {}
    if before:
        target.load_state_dict(before)
    return [*results, plain(args), state]

def main():
    outcome = {}
    with torch.no_grad():
        for name, target, args, kwargs in calls:
            got = called(name, target, args, kwargs, smelt.compile)
            outcome[name] = [got, called(name, target, args, kwargs, lambda f: f)]
    compiler = ("smelt.capture", "smelt.tracing", "smelt.codegen", "llvmlite", "sympy")
    modules = [m for m in sys.modules if m.startswith(compiler)]
    print(json.dumps([outcome, modules]))
"""


# What torch's optimizers and `torch.cond` import when they are used, in a second.
WITH_DYNAMO = ("torch", "torch._dynamo")


def process(folder, program=PROGRAMS, startup=None, arguments=(), imports=("torch",), **variables):
    """What `main()` of a module prints, in a process of its own that stores and finds entries in `folder`. `imports`: the
    modules that are imported before it."""
    (folder / "programs_of_two_processes.py").write_text(program)
    text = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv[1:] = {list(arguments)!r}; "
        "import programs_of_two_processes as p; p.main()"
    )
    env = {**os.environ, "SMELT_CACHE_DIR": str(folder / "cache"), "SMELT_WARM_START": "1", **variables}
    done = start(text, env=env, startup=startup, imports=imports)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def close(a, b):
    if isinstance(a, (list, dict)):
        items = a.items() if isinstance(a, dict) else enumerate(a)
        return type(a) is type(b) and len(a) == len(b) and all(close(v, b[k]) for k, v in items)
    return a == pytest.approx(b, rel=1e-5, abs=1e-5) if isinstance(a, float) else a == b


def test_a_second_process_imports_no_compiler(tmp_path):
    cold, imported = process(tmp_path)
    assert imported
    warm, imported = process(tmp_path)
    assert imported == []
    for name, (got, eager) in warm.items():
        assert close(got, eager), name
        assert got == cold[name][0], name


OF_HASHES = """
import json, sys
import torch, smelt
def order(x):
    return [x * len(name) for name in {"a", "bb", "ccc", "dddd", "eeeee"}]
def text(x, f):
    return x + 1, hash("text"), f"{f}", id(f) % 7
def main():
    with torch.no_grad():
        x = torch.ones(2)
        got = [t.tolist() for t in smelt.compile(order)(x)], [str(v) for v in smelt.compile(text)(x, order)[1:]]
        wanted = [t.tolist() for t in order(x)], [str(v) for v in text(x, order)[1:]]
    print(json.dumps([got == wanted, "smelt.capture" in sys.modules]))
"""


def test_what_hashes_and_addresses_decide_is_not_stored(tmp_path):
    for seed in ("1", "2"):
        assert process(tmp_path, OF_HASHES, {**os.environ, "PYTHONHASHSEED": seed}) == [True, True]


def test_other_settings_of_the_process_find_nothing(tmp_path):
    small = PROGRAMS + "\ncalls = calls[2:3]\n"
    process(tmp_path, small)
    for variables in ({"OMP_NUM_THREADS": "1"}, {"SMELT_FUSE": "0"}):
        assert process(tmp_path, small, **variables)[1] != []
    assert process(tmp_path, small)[1] == []


SIZES = """
import json, sys
import torch
from torch import nn
import smelt

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2) * n**-0.5).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, 16)), x.shape, n * b

def pooled(x, y):
    return torch.cat([x, y], 1).mean(1), x.reshape(-1), x.shape[0] // 2

def written(x, out):
    out.add_(x.sum(0))
    return out * x.shape[0]

def numbers(x, k, scale):
    return x * k + scale, k * 2, x.sum() / k

torch.manual_seed(0)
attention = Attention().eval()
programs = {
    "attention": (attention, lambda n: (torch.randn(n, 4 * n, 16),)),
    "pooled": (pooled, lambda n: (torch.randn(n, n + 1, 3), torch.randn(n, n + 5, 3))),
    "written": (written, lambda n: (torch.randn(n, 4), torch.zeros(4))),
    "numbers": (numbers, lambda n: (torch.randn(6), n, n / 2 + 0.25)),
}

def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

def main():
    sizes, dynamic = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    outcome = {}
    with torch.no_grad():
        for name, (target, make) in programs.items():
            compiled, outcome[name] = smelt.compile(target, dynamic=dynamic), []
            for n in sizes:
                args = make(n)
                wanted = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
                got = plain([compiled(*args), args])
                outcome[name].append([got, plain([target(*wanted), wanted])])
    print(json.dumps([outcome, "smelt.capture" in sys.modules, "smelt.pipeline" in sys.modules]))
"""


@pytest.mark.parametrize("dynamic", ["true", "null"])
def test_symbolic_sizes_hit_at_other_sizes(tmp_path, dynamic):
    runs = [([5, 6], True, True), ([7, 3, 9], False, True), ([9, 6, 7], False, False)]
    for sizes, captures, compiles in runs:  # other products need other plans, which are added to the entry
        outcome, *imported = process(tmp_path, SIZES, arguments=[json.dumps(sizes), dynamic])
        assert imported == [captures, compiles]
        for name, calls in outcome.items():
            for got, eager in calls:
                assert close(got, eager), name


TRAINING = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn
import smelt

class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 8), nn.Dropout(0.25), nn.Linear(8, 3)
    def forward(self, x):
        hidden = self.body(x).tanh()
        logits = self.head(self.drop(hidden))
        return {"loss": logits.square().mean() + hidden.mean(), "logits": logits, "hidden": hidden}

def function(x, y, k):
    z = x.sin() * y.T.mT
    return z.exp().sum(), (z * k).softmax(-1), z

def step(module, out):
    out.square().mean().backward()

def of_loss(module, out):
    (out["loss"] + out["logits"][0, 0]).backward()

def of_hidden(module, out):
    out["hidden"].sum().backward()

def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

def trained(make, prepare, backward, shape):
    torch.manual_seed(3)
    module = make()
    target, x = prepare(module), torch.randn(shape, requires_grad=True)
    optimizer, seen = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        out = target(x)
        backward(module, out)
        seen += [plain(out), x.grad.tolist(), [p.grad.tolist() for p in module.parameters() if p.grad is not None]]
        optimizer.step()
    return [seen, plain(dict(module.state_dict())), [b._version for b in module.buffers()]]

def partial(prepare):
    torch.manual_seed(4)
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    call, seen = prepare(function), []
    for outputs, inputs in (((0,), (x,)), ((1, 2), (x, y)), ((0, 2), (y,)), ((0,), (x,))):
        found = call(x, y, 2.0)
        loss = sum(found[i].sum() for i in outputs)
        seen.append(plain(torch.autograd.grad(loss, inputs)))
    (first,) = torch.autograd.grad(call(x, y, 2.0)[1].square().sum(), x, create_graph=True)
    seen.append(plain(torch.autograd.grad(first.square().sum(), (x, y))))
    return seen

cases = {
    "norms": lambda prepare: trained(Norms, prepare, step, (2, 3, 6, 6)),
    "loss": lambda prepare: trained(Loss, prepare, of_loss, (5, 6)),
    "partial": partial,
}
late = {"hidden": lambda prepare: trained(Loss, prepare, of_hidden, (5, 6))}

def main():
    chosen = {name: case for name, case in (cases | late).items() if name in sys.argv[1:]}
    outcome = {name: [case(smelt.compile), case(lambda f: f)] for name, case in chosen.items()}
    print(json.dumps([outcome, "smelt.capture" in sys.modules, "smelt.pipeline" in sys.modules]))
"""


def test_entries_of_training_are_found_with_their_backwards(tmp_path):
    runs = [
        (["norms", "loss"], True, True),
        (["norms", "loss"], False, False),
        (["hidden"], False, True),  # this backward is not stored yet
        (["hidden", "norms", "loss"], False, False),
        (["partial"], True, True),
        (["partial"], False, True),  # a second derivative replays the graph
    ]
    for names, captures, compiles in runs:
        outcome, *imported = process(tmp_path, TRAINING, arguments=names, imports=WITH_DYNAMO)
        assert imported == [captures, compiles], names
        for name, (got, eager) in outcome.items():
            assert close(got, eager), name


SIZED_TRAINING = """
import json, sys
import torch
from torch import nn
import smelt

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 8), nn.Dropout(0.25), nn.Linear(8, 3)
    def forward(self, x):
        hidden = self.body(x).tanh()
        logits = self.head(self.drop(hidden))
        return {"loss": logits.square().mean() * x.shape[0] + hidden.mean(), "hidden": hidden}

def function(x, y):
    z = x.sin() * y
    return (z.exp() * x.shape[0]).sum(), z.softmax(-1), z

def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

def trained(prepare, sizes):
    torch.manual_seed(3)
    module = Loss()
    target, seen = prepare(module), []
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for n in sizes:
        x = torch.linspace(-1, 1, 6 * n).view(n, 6).requires_grad_()
        optimizer.zero_grad()
        out = target(x)
        out["loss"].backward()
        seen += [plain(out), plain(x.grad), [plain(p.grad) for p in module.parameters()]]
        optimizer.step()
    return seen

def partial(prepare, sizes):
    call, seen = prepare(function), []
    for n in sizes:
        x, y = (torch.linspace(a, 1, 4 * n).view(n, 4).requires_grad_() for a in (-1, 0))
        for outputs, inputs in (((0,), (x,)), ((1, 2), (x, y))):
            found = call(x, y)
            seen.append(plain(torch.autograd.grad(sum(found[i].sum() for i in outputs), inputs)))
        if "twice" in sys.argv:
            (first,) = torch.autograd.grad(call(x, y)[1].square().sum(), x, create_graph=True)
            seen.append(plain(torch.autograd.grad(first.square().sum(), (x, y))))
    return seen

def main():
    case, sizes = {"trained": trained, "partial": partial}[sys.argv[1]], json.loads(sys.argv[2])
    got = case(lambda f: smelt.compile(f, dynamic=True), sizes)
    print(json.dumps([got, case(lambda f: f, sizes), "smelt.capture" in sys.modules, "smelt.pipeline" in sys.modules]))
"""


@pytest.mark.parametrize("case", ["trained", "partial"])
def test_gradients_with_symbolic_sizes_hit_at_other_sizes(tmp_path, case):
    runs = [("[5, 6]", [], True, True), ("[7, 5, 9]", [], False, None), ("[9, 5, 7]", [], False, False)]
    if case == "partial":
        runs += [("[5, 8]", ["twice"], False, True)]
    for sizes, more, captures, compiles in runs:
        got, eager, captured, compiled = process(
            tmp_path, SIZED_TRAINING, arguments=[case, sizes, *more], imports=WITH_DYNAMO
        )
        assert close(got, eager), sizes
        assert captured is captures and compiles in (None, compiled), sizes


BREAKS = """
import json, sys, traceback, warnings
import torch
from torch import nn
import smelt

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(3, 3), []
    def forward(self, x):
        x = self.linear(x)
        self.seen.append(round(x.sum().item(), 3))
        return x.relu() + len(self.seen)

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inner(), Inner()
    def forward(self, x):
        y = self.second(self.first(x) * 2)
        return y + 1, self.first.seen + self.second.seen

def chooses(x):
    y = x * 2
    if y.sum() > 0:
        return y.exp()
    return y - 1

def stops(x, names):
    y = x.sin()
    smelt.graph_break()
    for name in names:
        y = y + len(name)
    try:
        return y / names["a"], str(names)
    except TypeError as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        return y, type(error).__name__, line

def warned(x):
    y = x + 1
    warnings.warn("careful", stacklevel=1)
    return y * 2

def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

def called(make, prepare, arguments):
    torch.manual_seed(0)
    call = prepare(make())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [plain(call(*a)) for a in arguments]
    return results, [(str(w.message), w.filename, w.lineno) for w in caught if "careful" in str(w.message)]

def cases(sign):
    x = torch.tensor([1.0, 2.0, 3.0]) * sign
    return {
        "outer": (Outer, [(x,)] * 3),
        "chooses": (lambda: chooses, [(x,), (x,)]),
        "stops": (lambda: stops, [(x, ["a", "b"]), (x, {"a": 2})]),
        "warned": (lambda: warned, [(x,)]),
    }

def main():
    outcome = {}
    with torch.no_grad():
        for name, (make, arguments) in cases(int(sys.argv[1])).items():
            got = called(make, smelt.compile, arguments)
            captured = "smelt.capture" in sys.modules
            outcome[name] = [got, called(make, lambda f: f, arguments), captured]
    print(json.dumps([outcome]))
"""


def test_functions_with_graph_breaks_are_found_in_pieces(tmp_path):
    for sign, captured in ((1, True), (1, False)):
        ((outcome,)) = process(tmp_path, BREAKS, arguments=[str(sign)])
        for name, (got, eager, imported) in outcome.items():
            assert close(got, eager), name
            if name not in ("stops", "warned"):  # whose tracebacks and filters have no stored form
                assert imported is captured, name


def test_a_piece_that_is_not_stored_runs_eagerly_and_is_compiled_later(tmp_path):
    process(tmp_path, BREAKS, arguments=["1"])
    ((outcome,)) = process(tmp_path, BREAKS, arguments=["-1"])  # another branch after the break
    assert outcome["chooses"][2]
    for name, (got, eager, _) in outcome.items():
        assert close(got, eager), name


# ---- graphs inside of graphs

WITH_SUBGRAPHS = pytest.mark.skipif(
    REFUSED, reason="torch.cond calls torch.compile there, which breaks the graph"
)

SUBGRAPHS = """
import json, sys
import torch
from torch import nn
from torch._higher_order_ops import while_loop
import smelt

torch.manual_seed(0)
first, second = nn.Linear(4, 4), nn.Linear(4, 4)
scale = torch.rand(4)

def chosen(x):
    return torch.cond(x.sum() > 0, lambda a: first(a).exp() * scale, lambda a: second(a) @ a.t() @ a, (x,))

def decided(x):
    if x.sum() > 0:
        return first(x).exp()
    return second(x) @ x.t()

def looped(x):
    return while_loop(lambda i, a: a.sum() < 60, lambda i, a: (i + 1, a * 2 + scale), (torch.tensor(0), x))

def sized(x, y):
    z = torch.cond(y.sum() > 0, lambda a: (a @ a).sin(), lambda a: a.cumsum(0) @ a, (y,))
    return x * 2 + z[0]

X = torch.rand(4, 4)

def main():
    outcome = {}
    with torch.no_grad():
        for f in (chosen, looped):
            c = smelt.compile(f, fullgraph=True)
            outcome[f.__name__] = [[t.tolist() for t in torch.utils._pytree.tree_leaves(c(x))] for x in (X, -X / 9)]
        c = smelt.compile(sized, fullgraph=True, dynamic=True)
        outcome["sized"] = [c(torch.ones(n, 4), X).tolist() for n in (3, 5)]
    c = smelt.compile(chosen, fullgraph=True)
    for x in (X, -X):
        given = x.clone().requires_grad_()
        c(given).square().sum().backward()
        outcome[f"gradients {x.sum() > 0}"] = [given.grad.tolist(), first.weight.grad.tolist()]
    c = smelt.compile(decided, fullgraph=True)
    for x in (X, -X):
        first.weight.grad = second.weight.grad = None
        c(x).square().sum().backward()
        found = (first.weight.grad, second.weight.grad)
        outcome[f"decided {x.sum() > 0}"] = [g if g is None else g.tolist() for g in found]
    if sys.argv[1:]:
        given = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(c(given).square().sum(), given, create_graph=True)
        outcome["second"] = torch.autograd.grad(gradient.sum(), given)[0].tolist()
    compiler = ("smelt.capture", "smelt.tracing", "smelt.codegen", "llvmlite")
    print(json.dumps([outcome, [m for m in sys.modules if m.startswith(compiler)]]))
"""


@WITH_SUBGRAPHS
def test_graphs_inside_of_graphs(tmp_path):
    first, imported = process(tmp_path, SUBGRAPHS, imports=WITH_DYNAMO)
    assert imported
    for name, used in (("decided True", 0), ("decided False", 1)):
        assert [g is not None for g in first[name]] == [used == 0, used == 1]
    again, imported = process(tmp_path, SUBGRAPHS, imports=WITH_DYNAMO)
    assert again == first and not imported


@WITH_SUBGRAPHS
def test_second_derivatives_of_graphs_inside_of_graphs(tmp_path):
    first, _ = process(tmp_path, SUBGRAPHS, arguments=("second",), imports=WITH_DYNAMO)
    again, _ = process(tmp_path, SUBGRAPHS, arguments=("second",), imports=WITH_DYNAMO)
    assert again == first and "second" in first
