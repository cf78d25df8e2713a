"""A server: threads that compile small models, call them again, run them eagerly, and read and write what they hold.

    python -m benchmarks.server [--seconds N] [--threads N] [--seed N] [--switch SECONDS]

Each model (`MODELS`) keeps what it computes somewhere outside of its call: an attribute, a container, a global, a closure,
a class. Its result depends on its input alone, so it can be checked whatever the other threads store meanwhile. What must
hold: no thread ever finds in a model what capture computes with (`strangers`), none raises, results are eager's, and the
settings of the process are what they were.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import smelt

SIZE = 4


class Model(nn.Module):
    """One layer, whose output `keep` stores somewhere, and `kept` reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.prepare()

    def prepare(self) -> None:
        """Makes what `keep` writes to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.linear(x))
        self.keep(h)
        return h + 0 * self.kept()  # which another thread may have stored

    def keep(self, h: torch.Tensor) -> None:
        """Stores `h`."""
        raise NotImplementedError

    def kept(self) -> torch.Tensor:
        """What `keep` has stored, by whatever thread."""
        raise NotImplementedError


class Attribute(Model):
    def keep(self, h):
        self.h = h

    def kept(self):
        return self.h


class Counter(Model):
    def prepare(self):
        self.calls = 0

    def keep(self, h):
        self.calls += 1
        self.last = h

    def kept(self):
        return self.last * min(self.calls, 1)


class Item(Model):
    def prepare(self):
        self.held = [torch.zeros(1, SIZE)]

    def keep(self, h):
        self.held[0] = h

    def kept(self):
        return self.held[0]


class Appended(Model):
    def prepare(self):
        self.held = []

    def keep(self, h):
        self.held.append(h)
        if len(self.held) > 3:
            self.held = self.held[-1:]

    def kept(self):
        return self.held[-1]


class Entry(Model):
    def prepare(self):
        self.cache = {}

    def keep(self, h):
        self.cache["h"] = h

    def kept(self):
        return self.cache["h"]


class Nested(Model):
    def prepare(self):
        self.cache = {"layers": [{}, {}]}

    def keep(self, h):
        for layer in self.cache["layers"]:
            layer["h"] = (h, h + 1)

    def kept(self):
        return self.cache["layers"][1]["h"][0]


class Ordered(Model):
    def prepare(self):
        self.cache = collections.OrderedDict(a=torch.zeros(1, SIZE), b=torch.zeros(1, SIZE))

    def keep(self, h):
        self.cache["a"] = h
        self.cache.move_to_end("a")

    def kept(self):
        return self.cache["a"]


class Defaulted(Model):
    def prepare(self):
        self.cache = collections.defaultdict(dict)

    def keep(self, h):
        self.cache[0]["h"] = h

    def kept(self):
        return self.cache[0]["h"]


class Window(Model):
    def prepare(self):
        self.window = collections.deque([torch.zeros(1, SIZE)] * 2, maxlen=2)

    def keep(self, h):
        self.window.append(h)

    def kept(self):
        return self.window[-1]


class Seen(Model):
    def prepare(self):
        self.seen = set()

    def keep(self, h):
        self.seen.add(h.shape[0])
        self.last = h

    def kept(self):
        return self.last * (1 if self.seen else 2)


class Slots:
    __slots__ = ("h",)


class Slotted(Model):
    def prepare(self):
        self.slots = Slots()

    def keep(self, h):
        self.slots.h = h

    def kept(self):
        return self.slots.h


class Namespace(Model):
    def prepare(self):
        self.space = types.SimpleNamespace()

    def keep(self, h):
        self.space.h = h

    def kept(self):
        return self.space.h


@dataclasses.dataclass
class State:
    h: torch.Tensor | None = None
    pair: tuple[Any, ...] = ()


class Instance(Model):
    def prepare(self):
        self.state = State()

    def keep(self, h):
        self.state.pair = (h, {"h": h})
        self.state.h = h

    def kept(self):
        return self.state.h


class Replaced(Model):
    def keep(self, h):
        self.state = State(h, (h,))

    def kept(self):
        return self.state.pair[0]


class Closure(Model):
    def prepare(self):
        held = torch.zeros(1, SIZE)

        def keep(h):
            nonlocal held
            held = h

        self.keep = keep
        self.kept = lambda: held


class Global(Model):
    def keep(self, h):
        global last
        last = h

    def kept(self):
        return last


class OfClass(Model):
    last = torch.zeros(1, SIZE)

    def keep(self, h):
        type(self).last = h

    def kept(self):
        return self.last


class OfFunction(Model):
    def prepare(self):
        def function():
            return None

        self.function = function

    def keep(self, h):
        self.function.last = h

    def kept(self):
        return self.function.last


class Buffer(Model):
    def prepare(self):
        self.register_buffer("h", torch.zeros(1, SIZE))

    def keep(self, h):
        self.h = h

    def kept(self):
        return self.h


class InDictionary(Model):
    def keep(self, h):
        vars(self)["h"] = h

    def kept(self):
        return self.__dict__["h"]


class OfChild(Model):
    def keep(self, h):
        self.linear.output = [h]

    def kept(self):
        return self.linear.output[0]


class Hook(Model):
    def prepare(self):
        self.outputs = {}
        self.linear.register_forward_hook(lambda module, args, out: self.outputs.update(h=out))

    def keep(self, h):
        pass

    def kept(self):
        return self.outputs["h"]


last = torch.zeros(1, SIZE)
MODELS: tuple[type[Model], ...] = (
    Attribute, Counter, Item, Appended, Entry, Nested, Ordered, Defaulted, Window, Seen, Slotted, Namespace, Instance,
    Replaced, Closure, Global, OfClass, OfFunction, Buffer, InDictionary, OfChild, Hook,
)  # fmt: skip


# --------------------------------------------------------------------------------------------------------- what is held


def held_by(root: object) -> Iterator[object]:
    """The objects that `root` leads to, as another thread finds them; not through modules and globals."""
    seen, pending = {id(root)}, [root]
    while pending:
        at = pending.pop()
        yield at
        for part in _parts(at):
            if id(part) not in seen:
                seen.add(id(part))
                pending.append(part)


def _parts(at: object) -> list[object]:
    if isinstance(at, torch.Tensor | types.ModuleType | str | int | float):
        return []
    if isinstance(at, types.FunctionType):
        return [*(at.__closure__ or ()), *vars(at).values()]
    if isinstance(at, type):
        return [v for k, v in list(vars(at).items()) if not k.startswith("__")]
    parts = [type(at)] if isinstance(at, Model) else []
    return parts + [p for p in gc.get_referents(at) if not isinstance(p, type)]


def strangers(model: Model) -> list[str]:
    """What is found in a model, or beside it, that no program has put there: names of classes."""
    return [
        f"{type(model).__name__}: {type(value).__module__}.{type(value).__qualname__}"
        for value in [*held_by(model), last]
        if type(value).__module__.startswith("smelt.")
        or (isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, nn.Parameter))
    ]


# ----------------------------------------------------------------------------------------------------------- the server


@dataclass
class Served:
    """How often what was done, and what went wrong."""

    done: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)


class Server:
    """The models, each with its compiled form; every thread works on all of them."""

    def __init__(self) -> None:
        self.models = [kind().eval() for kind in MODELS]
        for model in self.models:
            model(torch.zeros(1, SIZE))  # what it keeps is there
        self.compiled = [smelt.compile(m, options={"recompile_limit": 64}) for m in self.models]
        self.settings = self.read_settings()

    def read_settings(self) -> tuple[object, ...]:
        """What belongs to all threads."""
        return sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()

    def compiled_call(self, i: int, rng: random.Random) -> None:
        x = torch.full((1, SIZE), rng.random())
        got, want = self.compiled[i](x), torch.tanh(self.models[i].linear(x))
        torch.testing.assert_close(got, want)

    def eager_call(self, i: int, rng: random.Random) -> None:
        x = torch.full((1, SIZE), rng.random())
        got, want = self.models[i](x), torch.tanh(self.models[i].linear(x))
        torch.testing.assert_close(got, want)

    def read(self, i: int, rng: random.Random) -> None:
        found = strangers(self.models[i])
        assert not found, found
        kept = self.models[i].kept()
        assert kept.shape == (1, SIZE), kept.shape
        assert self.read_settings() == self.settings, self.read_settings()

    def write(self, i: int, rng: random.Random) -> None:
        self.models[i].keep(torch.zeros(1, SIZE))

    def compile_again(self, i: int, rng: random.Random) -> None:
        smelt.reset()


ACTIONS: tuple[tuple[str, int], ...] = (  # and how often each, in a hundred
    ("compiled_call", 50), ("eager_call", 15), ("read", 20), ("write", 14), ("compile_again", 1),
)  # fmt: skip


SWITCH = 1e-6  # seconds that a thread runs while others wait; by default 5 milliseconds, in which most of a call fits


def serve(seconds: float, threads: int = 8, seed: int = 0, switch: float = SWITCH) -> Served:
    """Lets `threads` threads work side by side for a time, each for `switch` seconds at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(switch)
    try:
        return _serve(seconds, threads, seed)
    finally:
        sys.setswitchinterval(before)


def _serve(seconds: float, threads: int, seed: int) -> Served:
    server, served = Server(), Served()
    device = torch.get_default_device()
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        names, weights = zip(*ACTIONS, strict=True)
        # a thread begins with the CPU as its default
        with torch.no_grad(), contextlib.nullcontext() if device.type == "cpu" else torch.device(device):
            while time.monotonic() < end and len(served.wrong) < 100:
                (name,) = rng.choices(names, weights)
                i = rng.randrange(len(MODELS))
                action: Callable[[int, random.Random], None] = getattr(server, name)
                try:
                    action(i, rng)
                except Exception as error:
                    served.wrong.append(f"{name} of {MODELS[i].__name__}: {type(error).__name__}: {error}")
                served.done[name] += 1

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 120)
    if any(worker.is_alive() for worker in workers):
        served.wrong.append("a thread stands still")
    return served


def main() -> None:
    """Serves, and says what was done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--switch", type=float, default=SWITCH, help="seconds that a thread runs while others wait"
    )
    given = parser.parse_args()
    served = serve(given.seconds, given.threads, given.seed, given.switch)
    print(", ".join(f"{count} {name}" for name, count in served.done.items()))
    for problem in dict.fromkeys(served.wrong):
        print(problem)
    sys.exit(bool(served.wrong))


if __name__ == "__main__":
    main()
