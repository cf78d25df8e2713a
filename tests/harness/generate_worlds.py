"""What random programs do to the world outside them, and what happens to it between their calls: three tables of templates.

`EFFECTS` are statements that change objects of the module around the program, most of them through native functions;
`HOOKS` are tensors with hooks, custom functions and modules; `CHANGES` are statements of `change(call, ...)`, which runs
before each call and may replace what the program reads (its arguments, module state, methods, even its class). In a
template `{full}` is a tensor shaped like `x`, `{name}` one's name, `{number}` an integer, `{items}` a list, `{table}` a
dictionary and `{key}` a letter.
"""

from __future__ import annotations

PRELUDE = """\
import collections
import contextvars
import copy
import functools
import heapq
import io
import itertools
import operator
import random
import numpy

HEAP = [1, 3, 2]
QUEUE = collections.deque([1], maxlen=4)
DECK = list(range(5))
STREAM = itertools.count()
CYCLE = itertools.cycle((1, 2, 3))
GIVEN = iter([1, 2, 3, 4, 5])
SEEN = {1, 2}
BYTES = bytearray(b"abc")
ORDER = collections.OrderedDict(a=1, b=2, c=3, d=4)
COUNTS = collections.Counter("ab")
GROUPS = collections.defaultdict(list)
TEXT = io.StringIO()
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
ARRAY = numpy.zeros(3)
HOOKED = collections.Counter()

@functools.lru_cache(maxsize=2)
def cached(k):
    LOG.append(k)
    return k + 1

@functools.singledispatch
def described(value):
    return "something"

@described.register
def _(value: int):
    return "a number"

def numbers():
    k = 0
    while True:
        LOG.append(k)
        k += 1
        yield k

PULLED = numbers()

class Other(Box):
    def add(self, other):
        self.value = self.value - other
        return self.value

class Items(list):
    def __len__(self):
        return min(list.__len__(self), 2)

def seen(k):
    def hook(gradient):
        HOOKED[k] += gradient.sum().item()
    return hook

def hooked(a, k, hook=None):
    if a.requires_grad:
        a.register_hook(hook or seen(k))
    return a

def kept(a):
    if a.requires_grad:
        a.retain_grad()
    return a

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, k):
        ctx.save_for_backward(a)
        ctx.k = k
        return a * 2
    @staticmethod
    def backward(ctx, gradient):
        HOOKED["twice"] += 1
        return gradient * 2 + ctx.saved_tensors[0] * ctx.k, None

def slope(a, b):
    if not (a.requires_grad and b.requires_grad):
        return b
    found, = torch.autograd.grad(a.sum(), b, retain_graph=True, allow_unused=True)
    return b if found is None else found.clamp(-9, 9)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -1.0, 2.0]))
        self.register_buffer("steps", torch.zeros(()))
    def forward(self, a):
        if self.training:
            self.steps += 1
        return (a * self.weight).clamp(-9, 9)

LAYER = Layer()
LAYER.register_forward_hook(lambda module, given, made: LOG.append("forward"))
WATCHED = Layer()
WATCHED.register_full_backward_hook(lambda module, made, given: HOOKED.update(["module"]))

def observed():
    gradients = [LAYER.weight.grad, WATCHED.weight.grad]
    streams = [copy.copy(STREAM), copy.copy(CYCLE), copy.copy(GIVEN)]
    boxes = [Box, vars(STATE), type(STATE).__name__]
    return (HEAP, QUEUE, DECK, streams, SEEN, BYTES, ORDER, COUNTS, dict(GROUPS), TEXT.getvalue(), VARIABLE.get(),
        ARRAY, dict(HOOKED), cached.cache_info(), boxes, gradients, LAYER, WATCHED.steps)

"""

EFFECTS = (
    "operator.setitem({table}, '{key}', {full})",
    "operator.delitem({items}, 0) if {items} else None",
    "operator.iadd({items}, [{full}])",
    "operator.attrgetter('append')(LOG)({number})",
    "heapq.heappush(HEAP, {number}); LOG.append(heapq.heappop(HEAP))",
    "heapq.heappush(HEAP, {number})",
    "LOG.append(heapq.heappop(HEAP) if len(HEAP) > 1 else None)",
    "LOG.append(heapq.heapreplace(HEAP, {number}))",
    "QUEUE.appendleft({number}); LOG.append(len(QUEUE))",
    "QUEUE.rotate({number})",
    "LOG.append(next(STREAM))",
    "LOG.append(next(CYCLE))",
    "LOG.append(next(GIVEN, None))",
    "LOG.append([a for a, b in zip(GIVEN, range(2))])",
    "LOG.append({number} in GIVEN)",
    "LOG.append(next(PULLED))",
    "LOG.append(list(itertools.islice(STREAM, 2)))",
    "LOG.append(random.random())",
    "LOG.append(random.randrange(9))",
    "random.shuffle(DECK)",
    "LOG.append(random.choice(DECK))",
    "LOG.append(float(numpy.random.rand()))",
    "LOG.append(cached({number}))",
    "LOG.append(cached.cache_info())",
    "TEXT.write(str({number}))",
    "LOG.append(TEXT.tell())",
    "print({number}, file=TEXT)",
    "SEEN.add({number})",
    "SEEN.discard({number})",
    "SEEN.symmetric_difference_update((n, 1))",
    "LOG.append({number} in SEEN)",
    "BYTES.extend(b'ab')",
    "BYTES[0:1] = b'xy'",
    "ORDER.move_to_end('{key}')",
    "LOG.append(next(iter(ORDER)))",
    "COUNTS['{key}'] += 1",
    "COUNTS.update(a=n)",
    "GROUPS['{key}'].append({number})",
    "LOG.append(len(GROUPS['{key}']))",
    "VARIABLE.set({number})",
    "LOG.append(VARIABLE.get())",
    "program.calls = getattr(program, 'calls', 0) + 1",
    "Box.made = getattr(Box, 'made', 0) + 1",
    "setattr(STATE, '{key}', {full}.detach().clone())",
    "STATE.__dict__['extra'] = {number}",
    "vars(STATE).pop('extra', None)",
    "LOG.append(sorted(vars(STATE)))",
    "delattr(STATE, 'extra') if hasattr(STATE, 'extra') else None",
    "LOG.sort(key=repr)",
    "LOG.reverse()",
    "LOG[-2:] = [{number}]",
    "DECK.append(DECK.pop(0))",
    "DECK.sort(reverse={number} > 1)",
    "list(map(LOG.append, range({number} % 5)))",
    "functools.reduce(lambda a, b: LOG.append(b) or a, [1, 2, {number}])",
    "LOG.append([*filter(SEEN.__contains__, (1, n, 3))])",
    "STATE.value += 1",
    "STATE.value = STATE.value * 2 % 5",
    "{name}.extra = {number}",
    "LOG.append(getattr({name}, 'extra', None))",
    "ARRAY[{number} % 3] += 1",
    "LOG.append(float(ARRAY.sum()))",
    "globals().update(COUNT={number} % 2)",
    "LOG.append(described({number}))",
    "LOG.append(COUNT)",
    "LOG.append(type(STATE).__name__)",
    "LOG.append(id({name}) == id(x))",
    "LOG.append(LAYER({full}).shape)",
    "LAYER.train({number} > 1)",
    "LOG.append(torch.rand(()).item() < 2)",
)

HOOKS = (
    "hooked({full}, {number})",
    "hooked({full} * 1, {number})",
    "hooked({full} * 1, {number}, lambda g: g * 2)",
    "kept({full} * 1)",
    "Twice.apply({full}, {number}).clamp(-9, 9)",
    "({full} + slope({full}, {name}))",
    "LAYER({full})",
    "WATCHED({full} * 1)",
    "torch.utils.checkpoint.checkpoint(LAYER, {full}, use_reentrant=False)",
)

CHANGES = (
    "x = x * 1",
    "items = [x, *items[1:]]",
    "items = items[:1] * 2",
    "items = []",
    "items = Items(items)",
    "table = {{}}",
    "table = dict(reversed(table.items()))",
    "table = dict(table, a=x)",
    "table = collections.OrderedDict(table)",
    "table = collections.defaultdict(lambda: x, table)",
    "x = x.t().contiguous().t()",
    "x = x.double()",
    "x = x.detach()",
    "n = n + 1",
    "n = bool(n)",
    "n = numpy.int64(n)",
    "n = -n",
    "n = 300",
    "STATE.value = STATE.value + 1",
    "STATE.value = STATE.value.double()",
    "STATE.value = torch.ones(1)",
    "STATE.count = True",
    "STATE.count = 2.0",
    "STATE.count += 1",
    "STATE.extra = 5",
    "STATE.__class__ = Other",
    "STATE.__class__ = Box",
    "Box.add = Other.add",
    "Box.__len__ = lambda self: 2",
    "Box.count = 3",
    "Box.double = property(lambda self: self.value * 3)",
    "raises.__code__ = (lambda a, k: a - k).__code__",
    "deep.__defaults__ = (1,)",
    "globals()['STATE'] = Other(torch.zeros(3))",
    "globals()['COUNT'] = 1.0",
    "globals()['COUNT'] = True",
    "globals()['LOG'] = Items(LOG)",
    "LOG.clear()",
    "globals()['len'] = lambda value: 1",
    "globals().pop('len', None)",
    "globals()['raises'] = lambda a, k: a * 2",
    "cached.cache_clear()",
    "random.seed(int(n))",
    "LAYER.eval()",
    "LAYER.weight.requires_grad_(not LAYER.weight.requires_grad)",
    "LAYER.weight = torch.nn.Parameter(torch.tensor([2.0, 0.0, 1.0]))",
    "LAYER.forward = lambda a: a - 1",
    "LAYER.register_forward_pre_hook(lambda module, given: LOG.append('before'))",
    "LAYER.__class__ = WATCHED.__class__",
    "Layer.forward = lambda self, a: a + self.weight",
)
