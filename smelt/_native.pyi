"""The native core (`smelt/native/`, C++): calls of compiled functions, guard trees, plans, autograd nodes, memory.

docs/native.md lists the files.
"""

# `isinstance` is Python's, but does not read `__class__` of the object, which may run code and need not be its type.
from builtins import isinstance as isinstance
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, NotRequired, Protocol, TypedDict, TypeVar

import torch

_Result = TypeVar("_Result")
_S = TypeVar("_S", bound=set[object] | frozenset[object])
_Value = torch.Tensor | int | float
# A compiled graph: a callable from the tuple of its inputs to its outputs.
_Compiled = Callable[[tuple[torch.Tensor, ...]], Sequence[object]]

# ------------------------------------------------------------------------------------------- calls (native/calls/)

class Wrapped:
    """The callable that `wrap` returns. It binds to instances as its function does, and shows the function's attributes
    below its own."""

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
    """A callable that answers calls of `fn` from compiled entries.

    `fn` is a copy of `original`, and follows changes of its defaults; if `original` gets another `__code__`, `original` is
    called instead.

    On a miss it calls `callback(fn, slots)`; `slots` are the arguments as the function's parameters: positional,
    keyword-only, the tuple of `*args`, the dict of `**kwargs`. True: look again; False: run this call eagerly; a
    callable: run it eagerly, then call that unless the run raised. While `is_traced()`, calls run `traced`, or else
    `fn`.
    """

def is_traced() -> bool:
    """Whether another tracer (torch.jit.trace, torch.fx, make_fx, torch.func, any dispatch mode) observes the calls of this
    thread, or `torch.compiler.set_stance` forces eager calls or a backend."""

def add_entry(
    target: CodeType | Wrapped,
    guard: GuardTree | None,
    compiled: Callable[..., object] | None,
    only: Callable[[tuple[Any, ...]], Sequence[object]] | None = None,
) -> None:
    """Add an entry: calls that `guard` accepts (None: all) run `compiled(*slots, inputs)`.

    `inputs` is the tuple of the objects that the guard collected. `compiled` None: such calls run eagerly, and the
    callback is not asked. `only`: `compiled` returns the one item of the tuple `only(inputs)`; calls run `only`
    instead, without a Python frame.
    """

def entries(target: CodeType | Wrapped) -> list[tuple[GuardTree | None, Callable[..., object] | None]]:
    """The entries in the order in which they were added."""

def count(target: CodeType | Wrapped) -> int:
    """The number of entries."""

def clear(target: CodeType | Wrapped) -> None:
    """Drop all entries, and undo `close`."""

def close(target: CodeType | Wrapped) -> None:
    """Ask the callback no more; the entries still answer calls."""

def is_closed(target: CodeType | Wrapped) -> bool:
    """Whether `close` was called since the last `clear`."""

def tail_call(target: Callable[..., object], *args: object) -> object:
    """A tail call: a compiled frame returns it to have its caller call `target(*args)` instead."""

def release_arguments() -> None:
    """Release the caller's arguments: a resume function that runs eagerly calls this first, so that only its variables hold
    them."""

def send(iterator: Iterator[object], value: object) -> tuple[object, bool]:
    """The value that the iterator yields or returns for `value`, and whether it returned."""

def raise_at(error: BaseException, offset: int) -> NoReturn:
    """Raise the exception unchanged, with the traceback at this offset of the caller's code."""

def traceback_frame(code: CodeType, globals: dict[str, object], locals: dict[str, object] = ...) -> FrameType:
    """A frame of this code that never runs and holds `locals`, for tracebacks."""

def lines_are_traced() -> bool:
    """Whether a debugger or coverage tool follows the lines of this thread."""

def set_on_line_tracer(function: Callable[[], None]) -> None:
    """`function()` is called once, before the first call that runs eagerly because a debugger or coverage tool follows
    lines."""

def set_at_end_of_call(callback: Callable[[], None] | None) -> None:
    """`callback()` is called whenever a call of a wrapper ends; None: nothing is."""

def set_with_backend(function: Callable[[Wrapped, object], Callable[..., object]]) -> None:
    """`function(wrapped, backend)` returns what runs the calls of a wrapper while `torch.compiler.set_stance` forces a
    backend."""

def last_refused() -> CodeType | None:
    """The code object of this thread's last call that the entry compiled for it rejected, else None. Resets it to None."""

NATIVELY: object  # returned by the `vm` of `call_with_frame_hook` to run the function natively

def call_with_frame_hook(
    fn: Callable[..., _Result],
    args: tuple[object, ...],
    kwargs: dict[str, object] | None,
    vm: Callable[..., object],
) -> _Result:
    """`fn(*args, **kwargs)`, with the Python functions that native code calls diverted to `vm(function, *slots)`.

    If `vm` returns NATIVELY, the function runs natively, under the same hook unless `skip` marked it."""

def skip(target: FunctionType | CodeType) -> None:
    """Let the frame hook run the function, and all that it calls, natively."""

def set_thread_recursion_limit(limit: int) -> int:
    """Set the recursion limit of this thread only; return the previous limit."""

def call_within(levels: int, function: Callable[..., _Result], *args: object) -> _Result:
    """The call, limited to so many more levels of recursion. From 3.12 on C code has a limit of its own."""

def postpone_collections(on: bool) -> bool:
    """Postpone automatic garbage collections, or no longer do; return the previous setting."""

class _State(TypedDict):
    mode: str  # of this thread: "off" or "hooked"
    installed: bool  # whether the PEP 523 hook is installed
    hooked_threads: int  # threads in a call of `call_with_frame_hook`
    hits: int
    misses: int
    callbacks: int
    diverted: int  # functions that the frame hook diverted to a VM

def state() -> _State:
    """Counters since the start of the process, and the state of the frame hook."""

# ----------------------------------------------------------------------------------------- guards (native/guards/)

_Check = tuple[int, str, object]  # index of the guard, its kind, the expected value
# index of the parent, kind of the accessor, its key, checks, index among the collected objects or -1
_Node = tuple[int, str, object, tuple[_Check, ...], int]

class GuardTree:
    """Decides in one pass over a call's slots whether a compiled entry may answer it.

    `spec` is (nodes, number of collected objects, objects that are referenced weakly), from `smelt.guards.tree_layout`.
    Raises TypeError and ValueError for an invalid spec, and for values that a guard does not support.
    """

    def __init__(
        self, spec: tuple[tuple[_Node, ...], int] | tuple[tuple[_Node, ...], int, tuple[object, ...]]
    ) -> None: ...
    def check(self, *slots: object) -> tuple[object, ...] | None:
        """The collected objects if all guards hold, else None."""

    def explain(self, *slots: object) -> int | None:
        """The index of the first guard that fails; None: all hold; -1: an object without guards is missing."""

    def memo_size(self) -> tuple[int, int] | None:
        """How many memory words the next check compares and how many objects it reads; None: it walks all nodes."""

def set_table(x: set[object] | frozenset[object]) -> tuple[int, int, tuple[int, ...]]:
    """The state that makes equal sets with equal order behave the same: the table size - 1, the index at which `pop`
    starts, and the used slots in order (-1 - slot for a removed element)."""

def lay_out(x: _S, items: tuple[Any, ...], table: tuple[int, int, tuple[int, ...]]) -> _S:
    """Put `items`, in order, into the empty set x, so that `set_table(x) == table`, and return it. Raises ValueError if the
    items have other hashes; x is then invalid."""

def is_generic(cls: type) -> tuple[bool, bool]:
    """Whether attributes of instances are read by object.__getattribute__, and whether they are stored by
    object.__setattr__; a subclass written in Python may have methods of its own."""

def copy_set(empty: set[Any], other: set[Any]) -> None:
    """Fill an empty set with the elements of another, in the same slots: both iterate in the same order, and behave the same
    after the same changes."""

def made_by_python(cls: type) -> bool:
    """Whether a class statement or a call of a metaclass created the class, not C code (which may also create heap
    types)."""

def parts_of_itertools(x: object) -> tuple[Any, ...] | None:
    """The fields of an itertools iterator from 3.14 on; None for another object."""

def hidden_dict(x: object) -> dict[str, object] | None:
    """The instance dictionary, even if the class hides it."""

def annotations_wait(x: object) -> bool:
    """Whether reading the annotations of a function, class or module would run code of the program."""

def keep_annotations(function: FunctionType, annotations: dict[str, object]) -> None:
    """Set the annotations without removing the function's `__annotate__`."""

def fresh_like(like: torch.Tensor, /) -> torch.Tensor:
    """A meta tensor with the layout of the meta tensor `like`, a new storage and no history."""

def view_like(like: torch.Tensor, source: torch.Tensor, /) -> torch.Tensor:
    """The same with the storage of the meta tensor `source`."""

def is_unhooked_leaf(x: object) -> bool:
    """Whether x is a leaf of autograd's graph whose gradients no hook observes or changes."""

def drops_silently(owner: object, kind: str, name: object) -> bool:
    """Whether no code runs when what `owner` has there is destroyed: no `__del__`, no callback of a weak reference but those
    of torch and smelt. `kind`: an attribute, slot, key, item or cell, with the name, key or index."""

def write_restriction(x: object) -> int:
    """Why autograd refuses an in-place write of `x` that requires grad. 0: it does not; 1: a leaf, 2: a view of a leaf, 3: a
    restricted view (one of several results, created without gradients, or in a custom function). -1: not a tensor."""

def type_version(cls: type) -> int:
    """A number that changes with an attribute of the class or of a base; 0: the class has no version now."""

def global_state() -> tuple[int, ...]:
    """Everything outside the arguments that changes what operators do, in the order of GLOBAL_STATE."""

GLOBAL_STATE: tuple[str, ...]

# ------------------------------------------------------------------------------------------- plans (native/plan/)

class Plan:
    """An executable plan; `smelt.plan.executable_plan` builds its `spec`."""

    arena_bytes: int  # scratch memory per call
    idle_bytes: int  # held between calls
    launches_only: bool  # all steps are kernel launches: no operator of torch or of the program is called
    def __init__(
        self,
        spec: tuple[object, ...],
        constants: tuple[torch.Tensor, ...],
        kernels: tuple[int | DeviceKernel, ...],
        keepalive: object = None,
        /,
    ) -> None:
        """`kernels`: by their positions in the spec. `keepalive`: owners of their code."""
    def __call__(self, inputs: tuple[_Value, ...], /) -> tuple[_Value | None, ...]:
        """The outputs. Thread-safe; a returned input is the object that was passed."""

    def use_cuda_graphs(
        self,
        capture: Callable[
            [tuple[torch.Tensor | None, ...], tuple[bool, ...]],
            tuple[Callable[[], None], tuple[torch.Tensor | None, ...], tuple[torch.Tensor | None, ...]]
            | None,
        ],
        /,
    ) -> None:
        """Record runs as CUDA graphs and replay them.

        `capture(inputs, copied)` captures a run; `copied`: which inputs come at changing addresses. It returns a
        function that replays the graph, static tensors that the copied inputs are copied to, and the outputs; or None
        if there can be no graph.
        """

    def release(self) -> int:
        """Free the CUDA graphs, and the arenas that no call uses; return their bytes. The next call allocates a new one."""

def loop_history(steps: int, states: Sequence[Sequence[torch.Tensor]], /) -> torch.Tensor:
    """A 0-d int64 tensor, the number of steps of a loop, whose memory owns the values with which each step but the first
    began. A copy of it does not."""

def loop_states(history: torch.Tensor, /) -> list[list[torch.Tensor]]:
    """The values that a history owns. Raises RuntimeError for another tensor."""

class PlanTemplate:
    """A symbolic plan, which creates Plans for sizes; in its `spec` (slot,) replaces a number that depends on sizes.

    `sizes`: the number of sizes, which are the first slots; the instructions that compute the others, each (operation,
    slot, slot) or (0, number, 0); the conditions: slots that must be at least 0, or must not; the temporaries in the
    arena (slot of its bytes, first step, last step), whose index allocations have instead of an offset; the alignment
    of offsets.
    """

    def __init__(
        self,
        spec: tuple[object, ...],
        sizes: tuple[object, ...],
        constants: tuple[torch.Tensor, ...],
        kernels: tuple[int | DeviceKernel, ...],
        keepalive: object = None,
        /,
    ) -> None: ...
    def at(self, sizes: Sequence[int], /) -> Plan | None:
        """The plan for these sizes; None if they do not satisfy the conditions."""

class ProgramPlans:
    """The plans of a program's file, best first, for a processor like this one."""

    def __init__(self, code: bytes, plans: tuple[tuple[bytes, tuple[torch.Tensor, ...]], ...], /) -> None:
        """`code` and plans: sections as they are stored, a plan with its constants. Links the code and reads the first plan.
        Raises ValueError for sections that are none, or do not work here."""

    def at(self, sizes: Sequence[int], /) -> Plan | None:
        """A new plan for these sizes; None if no plan covers them."""

def read_program(
    path: str | bytes, weights: str | bytes | None, /
) -> tuple[dict[str, bytes], list[tuple[str, torch.Tensor]]]:
    """The sections of a program's file except its weights, in their stored form, and its state. `weights`: the path of its
    file of weights, or None. Verifies checksums and tables. Raises OSError, and ValueError for another file or a damaged
    one."""

def unpacked(section: bytes, /) -> bytes:
    """A section of a graph, of plans or of machine code, unpacked. Raises ValueError for other bytes."""

def lacking(triple: str, needs: Sequence[str], /) -> str | None:
    """The reason why code for a target, with features by Linux's names, does not run here; None if it runs."""

def decode(data: bytes, makers: dict[int | str, Any], /) -> Any:
    """The value that `data` hold. `makers`: what makes parts of it from their members (smelt/plan/value_encoding.py). Raises
    ValueError for other bytes, and what the makers raise."""

def assign_arena_offsets(
    intervals: Sequence[tuple[int, int, int]], alignment: int, /
) -> tuple[list[int], int]:
    """Offsets in an arena, multiples of `alignment`, and the size of the arena. An interval is (bytes, first step, last
    step)."""

class ArenaBudget:
    """Limits the memory that its plans hold between calls to `limit` times that of the largest; those used longest ago free
    theirs first."""

    program_bytes: int  # of the programs of its plans that exist
    def __init__(self, limit: int, parent: ArenaBudget | None = None, /) -> None:
        """Programs also count in the parent."""

    def add(self, plan: Plan, /) -> None:
        """Count the memory of this plan, which has not run, from now on."""

class SizeDispatch:
    """A graph for all sizes: dispatches a call to the instance for the sizes of its inputs, which `make` compiles.

    `sources`: the input, dimension and so on of each number that `make` is called with (`help(SizeDispatch)`). `make`
    runs while `lock` (an RLock) is held.
    """

    instances: dict[tuple[int, ...], _Compiled]  # the cached ones, the most recently used first
    def __init__(
        self,
        sources: Sequence[tuple[int, int, int, int | None, bool]],
        make: Callable[[tuple[int, ...]], tuple[_Compiled] | _Compiled],
        lock: object,
        budget: ArenaBudget | None = None,
        /,
    ) -> None:
        """`make` returns an instance to cache, in a tuple, or a callable that is not cached. The 64 most recently used are
        cached; if `budget` has their plans, more are, while they take less than 64 MiB."""

    def __call__(self, inputs: tuple[_Value, ...], /) -> Sequence[object]:
        """The results of the instance. Thread-safe."""

    def prepare(self, numbers: tuple[int, ...], /) -> _Compiled:
        """The instance for these numbers, compiled if none is cached."""

def release_cached_blocks() -> int:
    """Free the cached blocks of the allocator for large blocks; return their bytes."""

def cached_block_bytes() -> int:
    """Bytes of the cached blocks."""

# ------------------------------------------------------------------------------------- GPUs (native/devices/)

class DeviceKernel:
    """The kernel `name` of `image` (PTX text or machine code), with blocks of `threads` threads and `shared` bytes of shared
    memory; `parts`: the maximum of launches in a batched launch. A loaded kernel stays loaded."""

    def __init__(self, image: bytes, name: str, threads: int, shared: int, parts: int = 0) -> None: ...
    def load(self, device: int, image: bytes = ..., /) -> None:
        """Load the kernel on a device, without the GIL; `image`: its code for that device. Raises RuntimeError with the
        driver's error."""

    def is_loaded(self, device: int, /) -> bool: ...

def link_ptx(ptx: bytes, device: int, /) -> bytes:
    """Machine code for the device, compiled by the driver without the GIL. Raises RuntimeError with the driver's error."""

def driver_version() -> int:
    """The CUDA version that the driver supports: 12080 is 12.8."""

def use_driver(file: str, /) -> None:
    """Open `file` instead of the machine's GPU driver, for tests. Call it before the first kernel is loaded."""

def use_hip() -> None:
    """Select AMD's driver (native/devices/hip_driver.cpp, never run on such a GPU). Call it before the first kernel is
    loaded."""

# ------------------------------------------------------------------------------------- autograd (native/autograd/)

class _CompileBackward(Protocol):
    def __call__(self, defined: tuple[bool, ...], reach: int = ..., /) -> _Compiled: ...

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
    """`help(Differentiable)` describes the items."""

    forward: _Compiled
    n_outputs: int
    differentiable: Sequence[tuple[int, Sequence[int], Sequence[int], torch.dtype]]
    gradients: Sequence[int]
    saved: Sequence[tuple[str, int] | tuple[str, int, Sequence[int]]]
    backward: _CompileBackward
    name: str
    through: NotRequired[Sequence[int]]
    groups: NotRequired[Sequence[tuple[Sequence[int], bool, bool]]]
    contributors: NotRequired[Sequence[Sequence[int]]]
    direct: NotRequired[Sequence[Sequence[int]]]
    conflicts: NotRequired[Sequence[Sequence[int]]]
    lock: NotRequired[_RLock]
    leaves: NotRequired[int]
    taken: NotRequired[Sequence[tuple[int, Sequence[tuple[str, int]], Callable[..., object], int]]]
    draws: NotRequired[Sequence[torch.device]]
    devices: NotRequired[Sequence[torch.device]]
    rewritten: NotRequired[Sequence[int]]
    copied: NotRequired[Sequence[int]]
    double_backward: NotRequired[_DoubleBackward | None]
    substitute: NotRequired[Callable[[int, tuple[bool, ...]], torch.Tensor | None]]
    layouts: NotRequired[Sequence[tuple[object, ...]]]

class Differentiable:
    """A compiled graph with its backward, as autograd nodes."""

    forward: _Compiled | None  # None once the garbage collector has cleared it
    # The backwards compiled so far: by the mask of defined tangents, or by (mask, reach).
    backwards: dict[tuple[object, ...], _Compiled]
    def __init__(self, spec: _DifferentiableSpec) -> None: ...
    def __call__(self, inputs: tuple[_Value, ...], /) -> tuple[_Value | None, ...]: ...

# ------------------------------------------------------------------------------------ operators (native/operators/)

def shape_function(name: str, overload: str) -> Callable[..., object] | None:
    """torch's C++ shape function of `aten::name.overload`, for meta tensors; None if there is none. Raises
    NotImplementedError if no argument is a meta tensor."""

# -------------------------------------------------------------------------------------- layouts (native/layout_probes.cpp)

def probe() -> dict[str, str | None]:
    """Try everything that is read by memory layout on objects created for that: None, or an error text, by name."""
