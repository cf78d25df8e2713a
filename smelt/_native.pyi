"""The native core (`smelt/native/`, C++): calls of compiled functions, guard trees, plans, nodes of autograd, memory.

docs/native.md says which file holds what.
"""

# `isinstance` is Python's, but does not ask the object for its `__class__`, which may be code and need not be its type.
from builtins import isinstance as isinstance
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, NotRequired, Protocol, TypedDict, TypeVar

import torch

_Result = TypeVar("_Result")
_S = TypeVar("_S", bound=set[object] | frozenset[object])
_Value = torch.Tensor | int | float
# A graph made callable: from the tuple of its inputs to its outputs.
_Compiled = Callable[[tuple[torch.Tensor, ...]], Sequence[object]]

# ------------------------------------------------------------------------------------------- calls (native/calls/)

class Wrapped:
    """The callable that `wrap` makes. It binds to instances as its function does, and shows the function's attributes
    beneath its own."""

    __wrapped__: FunctionType
    __name__: str
    __qualname__: str
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

def wrap(
    fn: FunctionType,
    callback: Callable[[FunctionType, tuple[object, ...]], bool | Callable[[], object]] | None = None,
    traced: Callable[..., object] | None = None,
    original: FunctionType | None = None,
) -> Wrapped:
    """A callable that answers calls of `fn` from compiled entries. `fn` follows changes of the defaults of `original`, the
    function of which it is a copy; once that has another `__code__`, it is called itself.

    On a miss `callback(fn, slots)` is called, with the arguments as they fill the function's slots: positional,
    keyword-only, the tuple of `*args`, the dictionary of `**kwargs`. True: look again; False: run this call eagerly; a
    callable: run it eagerly, then call that unless it raised. Where `is_traced()`, calls run `traced`, or else `fn`.
    """

def is_traced() -> bool:
    """Whether another tracer (torch.jit.trace, torch.fx, make_fx, torch.func, any dispatch mode) looks at the calls of this
    thread."""

def add_entry(
    target: CodeType | Wrapped,
    guard: GuardTree | None,
    compiled: Callable[..., object] | None,
    only: Callable[[tuple[Any, ...]], Sequence[object]] | None = None,
) -> None:
    """Calls that `guard` accepts (None: all) run `compiled(*slots, inputs)`, where `inputs` is the tuple of the objects that
    the guard collected. `compiled` None: they run eagerly, and the callback is not asked. `only`: what `compiled` returns is
    the one item of the tuple `only(inputs)`, which is called instead, without a frame of Python."""

def entries(target: CodeType | Wrapped) -> list[tuple[GuardTree | None, Callable[..., object] | None]]:
    """What `add_entry` added, in that order."""

def count(target: CodeType | Wrapped) -> int:
    """The number of entries."""

def clear(target: CodeType | Wrapped) -> None:
    """Drops all entries, and undoes `close`."""

def close(target: CodeType | Wrapped) -> None:
    """The callback is not asked any more; the entries still answer."""

def is_closed(target: CodeType | Wrapped) -> bool:
    """Whether `close` was called since the last `clear`."""

def tail(target: Callable[..., object], *args: object) -> object:
    """What a compiled frame returns so that its caller calls `target(*args)` in its place."""

def release_arguments() -> None:
    """What a resume function that runs eagerly begins with: its variables alone hold its arguments then."""

def send(iterator: Iterator[object], value: object) -> tuple[object, bool]:
    """What an iterator gives for that, and whether it has ended with that."""

def raise_at(error: BaseException, offset: int) -> NoReturn:
    """Raises the exception as it is, as if the caller stood at this offset of its code."""

def frame_of(code: CodeType, globals: dict[str, object]) -> FrameType:
    """A frame of this code that does not run."""

def last_refused() -> CodeType | None:
    """The code object of this thread's last call that no entry accepted although the callback had asked to look again.
    Asking forgets it."""

NATIVELY: object  # what a window's `vm` answers to have the function run as it is

def call_window(
    fn: Callable[..., _Result],
    args: tuple[object, ...],
    kwargs: dict[str, object] | None,
    vm: Callable[..., object],
) -> _Result:
    """`fn(*args, **kwargs)`, where every Python function that native code calls is replaced by `vm(function, *slots)`.

    Where `vm` answers NATIVELY the function runs as it is, in the same window unless `skip` marked it.
    """

def skip(target: FunctionType | CodeType) -> None:
    """Windows let the function, and all that it calls, run as it is."""

def set_thread_recursion_limit(limit: int) -> int:
    """How deep this thread alone may call; gives what was so before."""

def call_within(levels: int, function: Callable[..., _Result], *args: object) -> _Result:
    """The call, which may not go deeper than so many levels. From 3.12 on code of C has a limit of its own."""

def postpone_collections(on: bool) -> bool:
    """Whether the garbage collector waits until it is called for; gives what was so before."""

class _State(TypedDict):
    mode: str  # of this thread: "off" or "window"
    installed: bool  # whether the hook of PEP 523 is in place
    windows: int  # threads in a window
    hits: int
    misses: int
    callbacks: int
    diverted: int  # functions that windows handed to their VM

def state() -> _State:
    """Counters since the start of the process, and what is switched on."""

# ----------------------------------------------------------------------------------------- guards (native/guards/)

_Check = tuple[int, str, object]  # number of the guard, its kind, the value that it expects
# index of the parent, kind of the accessor, its key, checks, place among the collected objects or -1
_Node = tuple[int, str, object, tuple[_Check, ...], int]

class GuardTree:
    """Decides in one pass over a call's slots whether a compiled entry may answer it. `spec` is
    (nodes, number of collected objects, objects that it does not keep alive), as `smelt.guards.tree_layout` makes it.

    Raises TypeError and ValueError for a spec that is no tree, and for values that a guard cannot be about.
    """

    def __init__(
        self, spec: tuple[tuple[_Node, ...], int] | tuple[tuple[_Node, ...], int, tuple[object, ...]]
    ) -> None: ...
    def check(self, *slots: object) -> tuple[object, ...] | None:
        """The collected objects if all guards hold, else None."""

    def explain(self, *slots: object) -> int | None:
        """The number of the first guard that fails; None: all hold; -1: an object is missing that no guard is about."""

    def notes(self) -> tuple[int, int] | None:
        """How many words of memory the next check compares, and at how many objects it looks; None: it walks all nodes."""

def set_table(x: set[object] | frozenset[object]) -> tuple[int, int, tuple[int, ...]]:
    """What makes two sets with the same elements in the same order go on alike: the size of the table less one, where `pop`
    begins to look, and the places in use, in order (-1 - place: its element was removed)."""

def lay_out(x: _S, items: tuple[Any, ...], table: tuple[int, int, tuple[int, ...]]) -> _S:
    """Puts `items`, in order, into the empty set x, so that `set_table(x) == table`, and returns it. ValueError, and x is of
    no use any more, where the items have other hashes."""

def is_generic(cls: type) -> tuple[bool, bool]:
    """Whether attributes of instances are read as object.__getattribute__ reads them, and whether they are stored as
    object.__setattr__ stores them; a subclass written in Python may have methods of its own besides."""

def copy_set(empty: set[Any], other: set[Any]) -> None:
    """Fills an empty set with the elements of another, in the same places: iterators give them in the same order, and
    changes make the same of both."""

def made_by_python(cls: type) -> bool:
    """Whether a class statement or a call of a metaclass made the class, not C code (which also makes some on the heap)."""

def parts_of_itertools(x: object) -> tuple[Any, ...] | None:
    """What is inside of an iterator of itertools from 3.14 on, None of another object."""

def hidden_dict(x: object) -> dict[str, object] | None:
    """The dictionary of an object, which its class may hide."""

def annotations_wait(x: object) -> bool:
    """Whether reading the annotations of a function, class or module would run code of the program."""

def keep_annotations(function: FunctionType, annotations: dict[str, object]) -> None:
    """Gives the function those annotations, and leaves it the function that makes them."""

def fresh_like(like: torch.Tensor, /) -> torch.Tensor:
    """A tensor on the meta device laid out as `like`, which is one too, with memory of its own and no history."""

def view_like(like: torch.Tensor, source: torch.Tensor, /) -> torch.Tensor:
    """The same in the memory of `source`, on the meta device."""

def is_plain_leaf(x: object) -> bool:
    """Whether it is a leaf of autograd's graph, and no hook sees or changes the gradients that arrive at it."""

def how_written(x: object) -> int:
    """What autograd says to a write with gradients. 0: it is made; else it raises, since `x` is 1: a leaf, 2: a view of a
    leaf, 3: a view that was taken in a way that forbids writes (one of several results, without gradients, in a function
    of the user's). -1: no tensor."""

def type_version(cls: type) -> int:
    """A number that changes when an attribute of the class or of a base does; 0: it has none now."""

def global_state() -> tuple[int, ...]:
    """Everything outside the arguments that changes what operators do, in the order of GLOBAL_STATE."""

GLOBAL_STATE: tuple[str, ...]

# ------------------------------------------------------------------------------------------- plans (native/plan/)

# n_inputs, n_registers, constants, steps, outputs (register or -1), arena_bytes, release_gil, keepalive, numbers, device
_PlanSpec = tuple[
    int,
    int,
    tuple[torch.Tensor, ...],
    tuple[tuple[object, ...], ...],
    tuple[int, ...],
    int,
    bool,
    tuple[object, ...],
    tuple[int, ...],
    torch.device,
]

class Plan:
    """An executable plan; `smelt.plan.executable_plan` makes its `spec`."""

    arena_bytes: int  # scratch memory that one call uses
    idle_bytes: int  # held between calls
    launches_only: bool  # its steps are kernels: no operator of torch or of the program is called
    def __init__(self, spec: _PlanSpec) -> None: ...
    def __call__(self, inputs: tuple[_Value, ...], /) -> tuple[_Value | None, ...]:
        """The outputs. From several threads at once; an output that is an input is that very object."""

    def use_graphs(
        self,
        capture: Callable[
            [tuple[torch.Tensor | None, ...], tuple[bool, ...]],
            tuple[Callable[[], None], tuple[torch.Tensor | None, ...], tuple[torch.Tensor | None, ...]]
            | None,
        ],
        /,
    ) -> None:
        """From now on runs are replayed as CUDA graphs where they can be, which `capture(inputs, copied)` captures: `copied`
        says which inputs come at changing addresses. It gives what replays the graph, places that these are copied to, and
        the outputs, or None where there can be no graph."""

    def release(self) -> int:
        """Frees graphs, and the arenas that no call is using; returns their bytes. The next call makes a new one."""

class PlanTemplate:
    """Plans for sizes; `smelt.plan.executable_plan` makes its `spec`, where `Slot`s stand for numbers that depend on sizes.

    `sizes`: how many there are, which are the first slots; what computes the others, (operation, slot, slot) each or (0,
    number, 0); for which sizes the plans are, as slots of what must be at least 0, or must not; the temporaries in the arena
    (slot of its bytes, first step, last step), which allocations name by position in place of an offset; of offsets, the
    alignment."""

    def __init__(
        self,
        spec: _PlanSpec,
        sizes: tuple[
            int,
            tuple[tuple[int, int, int], ...],
            tuple[tuple[int, bool], ...],
            tuple[tuple[int, int, int], ...],
            int,
        ],
        /,
    ) -> None: ...
    def at(self, sizes: Sequence[int], /) -> Plan | None:
        """The plan for these sizes; None where it is not for them."""

def place(intervals: Sequence[tuple[int, int, int]], alignment: int, /) -> tuple[list[int], int]:
    """Offsets in an arena, multiples of `alignment`, and its bytes. Of each temporary: bytes, first and last step."""

class BySizes:
    """A graph for any sizes: calls the instance for the sizes of its inputs, which `make` gives. `sources`: the input and
    the dimension (and more) of each number that `make` is called with, while `lock` (an RLock) is held."""

    instances: dict[tuple[int, ...], _Compiled]  # those that are kept, the last used first
    def __init__(
        self,
        sources: Sequence[tuple[int, int, int, int | None, bool]],
        make: Callable[[tuple[int, ...]], tuple[_Compiled, list[Plan]] | _Compiled],
        lock: object,
        /,
    ) -> None:
        """`make` gives what is kept (the 64 used last are), with the plans whose memory between calls is its own, or a
        callable that is not kept."""

    def __call__(self, inputs: tuple[_Value, ...], /) -> Sequence[object]:
        """What the instance gives. From several threads at once."""

    def prepare(self, numbers: tuple[int, ...], /) -> _Compiled:
        """The instance for these sizes, which is made if none is kept."""

def release_blocks() -> int:
    """Frees the large blocks of memory that are kept for later calls; returns their bytes."""

def kept_bytes() -> int:
    """Bytes of the large blocks that are kept."""

# ------------------------------------------------------------------------------------- GPUs (native/devices/)

class DeviceKernel:
    """The kernel `name` of `image` (PTX as text, or a device's own code), in blocks of `threads` threads with `shared` bytes
    of shared memory; where one launch does several, `parts` at most. What was loaded stays loaded."""

    def __init__(self, image: bytes, name: str, threads: int, shared: int, parts: int = 0) -> None: ...
    def load(self, device: int, image: bytes = ..., /) -> None:
        """Loads it on a device, without the GIL: from `image`, this kernel's code for that device, if that is given. Raises
        RuntimeError with what the driver says."""

    def is_loaded(self, device: int, /) -> bool: ...

def link_ptx(ptx: bytes, device: int, /) -> bytes:
    """The device's own code, compiled by the driver, without the GIL. Raises RuntimeError with what it says."""

def driver_version() -> int:
    """The version of CUDA that the driver knows: 12080 is 12.8."""

def use_driver(file: str, /) -> None:
    """Opens `file` in place of the machine's driver of GPUs: for tests, before the first kernel is loaded."""

def use_hip() -> None:
    """The driver is AMD's (native/devices/hip.cpp, never run on such a GPU). Before the first kernel is loaded."""

# ------------------------------------------------------------------------------------- autograd (native/autograd/)

class _CompileBackward(Protocol):
    def __call__(self, defined: tuple[bool, ...], whole: bool = ..., /) -> _Compiled: ...

class _RLock(Protocol):
    def acquire(self) -> bool: ...
    def release(self) -> None: ...

_Tangents = tuple[torch.Tensor | None, ...]
_DoubleBackward = Callable[
    [
        tuple[torch.Tensor, ...],
        _Tangents,
        _Tangents,
        _Tangents,
    ],
    Sequence[torch.Tensor | None],
]

class _DifferentiableSpec(TypedDict):
    """`help(Differentiable)` says what each is."""

    forward: _Compiled
    n_outputs: int
    differentiable: Sequence[tuple[int, Sequence[int], Sequence[int], torch.dtype]]
    gradients: Sequence[int]
    saved: Sequence[tuple[str, int] | tuple[str, int, Sequence[int]]]
    backward: _CompileBackward
    name: str
    through: NotRequired[Sequence[int]]
    groups: NotRequired[Sequence[tuple[Sequence[int], bool]]]
    contributors: NotRequired[Sequence[Sequence[int]]]
    conflicts: NotRequired[Sequence[Sequence[int]]]
    lock: NotRequired[_RLock]
    leaves: NotRequired[int]
    taken: NotRequired[Sequence[tuple[int, Sequence[tuple[str, int]], Callable[..., object], int]]]
    draws: NotRequired[Sequence[torch.device]]
    devices: NotRequired[Sequence[torch.device]]
    rewritten: NotRequired[Sequence[int]]
    copied: NotRequired[Sequence[int]]
    double_backward: NotRequired[_DoubleBackward | None]

class Differentiable:
    """A compiled graph with its backward, as nodes of autograd's graph."""

    forward: _Compiled | None  # None once the garbage collector has cleared it
    # What has been compiled: by the mask of defined tangents, or by (mask, "whole").
    backwards: dict[tuple[object, ...], _Compiled]
    def __init__(self, spec: _DifferentiableSpec) -> None: ...
    def __call__(self, inputs: tuple[_Value, ...], /) -> tuple[_Value | None, ...]: ...

# ------------------------------------------------------------------------------------ operators (native/operators/)

def shape_function(name: str, overload: str) -> Callable[..., object] | None:
    """torch's C++ shape function of `aten::name.overload`, for meta tensors; None where there is none. It raises
    NotImplementedError if no argument is a meta tensor."""

# -------------------------------------------------------------------------------------- layouts (native/probes.cpp)

def probe() -> dict[str, str | None]:
    """What is read by its layout in memory, each tried on objects made for it: None, or what went wrong."""
