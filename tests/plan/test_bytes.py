"""Plans as bytes: what is written is what is read, and what is no plan is refused with the reason."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.sweep_plans import journey
from smelt import _native
from smelt.codegen.llvm.host_cpu import host, processor
from smelt.codegen.plan_loading import load
from smelt.errors import NeedsFixedSize, PlanError
from smelt.graph.ir import TensorSpec
from smelt.graph.object_handles import Handle
from smelt.graph.subgraphs import Choice, Loop
from smelt.graph.user_kernel_calls import RUN_KERNEL
from smelt.plan.arena_placement import Interval
from smelt.plan.machine_code import Block, Function, Library, Processor
from smelt.plan.serialization import packed, plans_to_bytes
from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    Reg,
    RunPlans,
    Step,
    Subplan,
    View,
)
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.plan.value_encoding import decode, encoded
from smelt.shapes.expr import Sym
from tests.harness.kernels import hand_written

aten = torch.ops.aten
CPU, F32 = torch.device("cpu"), torch.float32


def again(plan: Plan) -> _native.Plan:
    """`plan` after a journey through the sections of a program's file."""
    return journey(plan)[0]


def alloc(out: int, *shape: int, arena: int | None = None) -> Alloc:
    return Alloc(out, shape, torch.empty(shape, device="meta").stride(), F32, CPU, arena)


def increment(n: int = 8) -> Plan:
    """x + 1 for `n` elements."""
    steps = (alloc(1, n), Launch("increment", (0, 1), n, 1024, "model.py:3 in f"))
    return Plan(1, (), 2, steps, (1,), kernels=hand_written())


# ---- what is written is read


def value(v: object) -> object:
    return decode(encoded(v), {})


N, M = Sym("n", 1, 100), Sym("m")
VALUES = [
    None, True, False, 0, 1, -1, 127, 128, -128, -129, 1 << 62, -(1 << 62), 1 << 80, 0.0, -0.5, float("inf"), 1e-300,
    2 + 3j, "", "ümlaut\n", b"\0\xff", (), (1, (2, None)), [1, [2.0]], {"a": 1, "b": (CPU,)},
    torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8, torch.float8_e4m3fn,
    torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format, CPU, torch.device("cuda", 3),
    aten.add.Tensor, aten.mm.default, aten.mm.out, N, N + 1, N * M * -3 + M // 4 + 7, (N * 3 + 1) % 5 // M, N * N,
]  # fmt: skip


@pytest.mark.parametrize("v", VALUES, ids=str)
def test_values(v: object) -> None:
    read = value(v)
    assert read == v and type(read) is type(v)


def test_a_size_is_a_tuple_and_nan_is_nan() -> None:
    assert value(torch.Size((2, 3))) == (2, 3)
    nan = value(float("nan"))
    assert nan != nan


def test_a_plan_with_every_step() -> None:
    t = TensorSpec((2, 4), (4, 1), F32, CPU)
    steps = (
        alloc(3, 8, arena=0),
        Launch("increment", (0, 3), 8, 64, "a.py:1 in f"),
        View(4, 3, (4,), (1,), 4),
        alloc(5, 4),
        alloc(6, 8),
        ParallelLaunch((Launch("increment", (4, 5), 4, 4), Launch("increment", (1, 6), 8, 8)), (64, 64), 64),
        BumpVersion((1,)),
        Aten(aten.add_.Tensor, (Reg(1), Reg(6)), {"alpha": 0.5}, (None,), "a.py:2 in f", user_visible=True),
        Aten(aten.cat.default, ((Reg(5), Reg(2)), 0), {}, (7,)),
        Aten(aten.view.default, (Reg(6), [2, 4]), {}, (8,), expect=(t,)),
        Free((3, 4, 5)),
    )
    plan = Plan(2, (torch.arange(3.0),), 9, steps, (7, None, 8, 0), 64, False, kernels=hand_written())
    x, y = torch.randn(8), torch.randn(8)
    runs = []
    for native in (load(plan), again(plan)):
        written = y.clone()
        runs.append([*native((x, written)), written])
    a, none, b, same, w = runs[0]
    assert torch.equal(a, torch.cat([x[4:] + 2, torch.arange(3.0)])) and none is None and same is x
    for one, other in zip(*runs):
        assert one is other or torch.equal(one, other)


def test_numbers_are_inputs_again() -> None:
    plan = Plan(2, (), 3, (Aten(aten.mul.Tensor, (Reg(0), Reg(1)), {}, (2,)),), (2,), numbers=(1,))
    assert torch.equal(again(plan)((torch.arange(3), 2.5))[0], torch.arange(3) * 2.5)


def test_symbolic_sizes_are_refused_where_numbers_are_needed() -> None:
    steps = (
        Alloc(1, (N, M + 1), (M + 1, 1), F32, CPU),
        Launch("increment", (0, 1), N * (M + 1) // 4, 16),
        View(2, 1, (N,), (M + 1,), M),
    )
    plan = Plan(1, (), 3, steps, (1, 2), kernels=hand_written())
    for use in (load, again):
        with pytest.raises(NeedsFixedSize, match="not n"):
            use(plan)


# ---- machine code


def test_code_outlives_the_plan_that_was_loaded() -> None:
    native = again(increment())
    gc.collect()
    assert torch.equal(native((torch.zeros(8),))[0], torch.ones(8))


def test_a_gpus_kernel_is_refused_in_a_plan_for_a_cpu() -> None:
    library = Library(Processor("nvptx64-nvidia-cuda", "sm_90", "+ptx80"), (b".version 8.0",), ("increment",))
    code = Function(library, "increment", Block(threads=128, shared=2048))
    with pytest.raises(ValueError, match="a GPU's kernel in a plan for a CPU"):
        again(replace(increment(), kernels={"increment": code}))


def object_file() -> bytes:
    [data] = hand_written()["increment"].library.objects
    return data


def test_object_files_of_others_are_refused() -> None:
    for data, message in (
        (b"", "a damaged object file"),
        (b"\x7fELF" + bytes(60), "another machine"),
        (object_file()[:100], "a damaged object file"),
    ):
        library = Library(processor(host()), (data,), ("increment",))
        with pytest.raises(ValueError, match=message):
            again(replace(increment(), kernels={"increment": Function(library, "increment")}))


def test_damaged_object_files_are_refused_or_linked() -> None:
    """Whatever the bytes, the linker reads and writes within its bounds. Nothing is called."""
    rng, outcomes = random.Random(0), set()
    plan, whole = increment(), object_file()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        library = Library(processor(host()), (bytes(data[: rng.choice((len(data), 900))]),), ("increment",))
        try:
            again(replace(plan, kernels={"increment": Function(library, "increment")}))
            outcomes.add("linked")
        except ValueError:
            outcomes.add("refused")
    assert outcomes == {"linked", "refused"}


def test_a_launch_without_code_is_refused() -> None:
    with pytest.raises(PlanError, match="without the code of increment"):
        load(replace(increment(), kernels={}))


# ---- what is refused


def test_what_has_no_form_in_bytes() -> None:
    step = Aten(aten.rand.generator, ([3],), {"generator": torch.Generator()}, (0,))
    with pytest.raises(PlanError, match="a Generator has no form"):
        again(Plan(0, (), 1, (step,), (0,)))
    kernel = Aten(RUN_KERNEL, (Handle.of(increment), [Reg(0)], []), {}, ())
    with pytest.raises(PlanError, match="a Handle has no form"):
        again(Plan(1, (), 1, (kernel,), (0,)))


# ---- plans inside of plans

SPEC = TensorSpec((8,), (1,), F32, CPU)
CLONE = Plan(1, (), 2, (Aten(aten.clone.default, (Reg(0),), {}, (1,)),), (1,))


def chooses(*plans: Subplan, outs: tuple[int, ...] = (2,)) -> Plan:
    """x + 1 if a condition holds, else x."""
    step = RunPlans(Choice(), plans, 0, (1,), (SPEC,), outs, expect=(None,) * len(outs))
    return Plan(2, (), 3, (step,), outs)


def repeats(carried: int = 1) -> Plan:
    """x + 1 until its sum is at least 0."""
    total = Aten(aten.sum.default, (Reg(0),), {}, (1,))
    steps = (total, Aten(aten.lt.Scalar, (Reg(1), 0), {}, (2,)))
    plans = Subplan(Plan(1, (), 3, steps, (2,)), (0,)), Subplan(increment(), (0,))
    step = RunPlans(Loop(carried), plans, None, (0,), (SPEC,), (1,), expect=(SPEC,))
    return Plan(1, (), 2, (step,), (1,))


def test_inner_plans() -> None:
    x = torch.randn(8)
    chosen = again(chooses(Subplan(increment(), (0,)), Subplan(CLONE, (0,))))
    assert torch.equal(chosen((torch.tensor(True), x))[0], x + 1)
    assert torch.equal(chosen((torch.tensor([False]), x))[0], x)
    repeated = again(repeats())
    assert torch.equal(repeated((torch.full((8,), -2.5),))[0], torch.full((8,), 0.5))
    assert torch.equal(repeated((torch.ones(8),))[0], torch.ones(8))
    for wrong in (torch.tensor(1.0), torch.tensor([True, False])):
        with pytest.raises(RuntimeError, match="must be one bool"):
            chosen((wrong, x))
    with pytest.raises(RuntimeError, match=r"Float\[9\], but Float\[8\] was seen"):
        chosen((torch.tensor(True), torch.ones(9)))


def test_inner_plans_on_a_tensor_of_other_strides() -> None:
    """The executor copies it."""
    x = torch.randn(8, 2)[:, 0]
    chosen = again(chooses(Subplan(increment(), (0,)), Subplan(CLONE, (0,))))
    assert torch.equal(chosen((torch.tensor(True), x))[0], x + 1)


@pytest.mark.parametrize(
    "plan, what",
    [
        (chooses(Subplan(increment(), ()), Subplan(CLONE, (0,))), "with other inputs"),
        (chooses(Subplan(increment(), (1,)), Subplan(CLONE, (0,))), "number"),
        (chooses(Subplan(increment(), (0,))), "that do not fit their step"),
        (chooses(Subplan(increment(), (0,)), Subplan(CLONE, (0,)), outs=()), "that do not fit their step"),
        (repeats(carried=0), "that do not fit their step"),
        (repeats(carried=2), "number"),
        (chooses(Subplan(replace(CLONE, numbers=(0,)), (0,)), Subplan(CLONE, (0,))), "do not fit their step"),
    ],
    ids=["inputs", "operands", "number", "results", "carried", "too-many-carried", "tensor-as-number"],
)
def test_inner_plans_that_do_not_fit(plan: Plan, what: str) -> None:
    code, [data] = plans_to_bytes([plan])
    with pytest.raises(ValueError, match=what):
        loaded(data, code)


def loaded(plan: bytes, code: bytes = b"(\0") -> _native.Plan | None:
    return _native.ProgramPlans(packed(code), ((packed(plan), ()),)).at(())


def test_an_unknown_operator_names_it() -> None:
    lib = torch.library.Library("smelt_test_bytes", "FRAGMENT")
    lib.define("gone(Tensor x) -> Tensor")
    step = Aten(torch.ops.smelt_test_bytes.gone.default, (Reg(0),), {}, (1,))
    _, [data] = plans_to_bytes([Plan(1, (), 2, (step,), (1,))])
    loaded(data)
    with pytest.raises(ValueError, match="unknown operator, smelt_test_bytes::lost"):
        loaded(data.replace(b"::gone", b"::lost"))


TAGS = b"TFNidcsb([{tlmDoy/%zR"
BodyChange = Callable[[bytearray, int, random.Random], object]
DAMAGE: dict[str, BodyChange] = {
    "byte": lambda body, at, rng: body.__setitem__(at, rng.randrange(256)),
    "tag": lambda body, at, rng: body.__setitem__(at, rng.choice(TAGS)),
    "bit": lambda body, at, rng: body.__setitem__(at, body[at] ^ 1 << rng.randrange(8)),
    "more": lambda body, at, rng: body.insert(at, rng.choice((rng.choice(TAGS), rng.randrange(4)))),
    "less": lambda body, at, rng: body.__delitem__(slice(at, at + rng.randrange(1, 5))),
    "moved": lambda body, at, rng: body.__setitem__(slice(at, at + 9), body[at // 2 : at // 2 + 9]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_plans_are_refused_or_plans(kind: str) -> None:
    """Whatever the bytes, reading them ends in a ValueError, or gives a plan. Nothing is called."""
    steps = (
        Alloc(2, (N, 2), (2, 1), F32, CPU),
        alloc(3, 4, arena=0),
        View(4, 3, (2,), (1,), N // 3),
        ParallelLaunch(
            (Launch("increment", (0, 2), N * M - 4, 4), Launch("increment", (1, 3), 4, 8)), (64, 64), 64
        ),
        BumpVersion((0,)),
        Aten(
            aten.add.Tensor, (Reg(0), Reg(1)), {"alpha": 2}, (5,), expect=(TensorSpec((2,), (1,), F32, CPU),)
        ),
        Aten(aten.view.default, (Reg(0), [N, -1]), {}, (6,)),
        Free((2, 3, 4)),
    )
    plan = Plan(2, (), 7, steps, (5, None, 0), 64, kernels=hand_written())
    sized = SymbolicPlan(plan, ((N - 2, True),), (Interval(0, N * 4, 0, 3),), 64)
    code, [body] = plans_to_bytes([sized], (N, M))
    code, rng = packed(code), random.Random(kind)
    outcomes = set()
    for _ in range(1000):
        changed = bytearray(body)
        for _ in range(rng.choice((1, 2, 3))):
            DAMAGE[kind](changed, rng.randrange(len(changed)), rng)
        try:
            _native.ProgramPlans(code, ((packed(bytes(changed)), ()),)).at((4, 2))
            outcomes.add("read")
        except (ValueError, RuntimeError):
            outcomes.add("refused")
    assert "refused" in outcomes


UNREADABLE = {
    "nested": (b"(\x01" * 5000, "nested more than 100 deep"),
    "count": (b"(" + b"\xff" * 20, "more than 63 bits"),
    "integer": (b"i\xac\x02" + b"\x01" * 300, "an integer of too many bytes"),
    "key": (b"{\x02[\x00N", "unhashable"),
    "symbol": (b"y\x01n" + encoded(3) + encoded(2), "a symbol without values"),
    "device": (b"D\x03cpu" + encoded(1 << 40), "a device of an unknown index"),
    "text": (b"s\x01\xff", "not UTF-8"),
    "end": (encoded((1, 2))[:-1], "end in the middle"),
    "more": (encoded((1, 2)) + b"N", "bytes behind the value"),
    "tag": (b"?", "an unknown tag"),
    "record": (b"R\x01", "an unknown kind of record"),
    "operator": (b"o\x09aten::add\x04lost", "an unknown operator, aten::add.lost"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_values_that_cannot_be(name: str) -> None:
    data, message = UNREADABLE[name]
    with pytest.raises(PlanError, match=message):
        decode(data, {})


def test_what_cannot_be_read_is_not_written() -> None:
    nested: object = ()
    for _ in range(200):
        nested = (nested,)
    with pytest.raises(PlanError, match="nested"):
        encoded(nested)
    with pytest.raises(PlanError, match="an integer of"):
        encoded(1 << 5000)


@pytest.mark.parametrize(
    "step, message",
    [
        (replace(alloc(1, 8), stride=()), "as many strides as sizes"),
        (replace(alloc(1, 8), shape=(-8,)), "an impossible layout"),
        (replace(alloc(1, 1 << 40), arena=0), "does not fit its arena"),
        (Alloc(1, (1 << 40, 1 << 40), (1 << 40, 1), F32, CPU), "an impossible layout"),
        (alloc(0, 8), "register 0 is defined twice"),
        (alloc(9, 8), "a number from 0 to 2"),
        (Free((1,)), "register 1 is read where it holds nothing"),
        (View(1, 1, (8,), (1,), 0), "register 1 is read where it holds nothing"),
        (ParallelLaunch((Launch("increment", (0, 0), 8, 8),), (), 1), "do not match"),
        (Launch("increment", ("x",), 8, 8), "an integer is expected"),  # type: ignore[arg-type]
        (Aten(aten.relu.default, (1.5j,), {}, (1,)), None),
        (Aten(aten.t.default, ("x",), {}, (1,)), "no Tensor"),
        (Aten(aten.sum.dim_IntList, (Reg(0), [0.5]), {}, (1,)), "no int"),
        (Aten(aten.cat.default, ((Reg(0), Reg(1)),), {}, (1,)), "register 1 is read where"),
    ],
)
def test_steps_that_cannot_be(step: Step, message: str | None) -> None:
    plan = replace(increment(), steps=(step,), outputs=())
    for use in (load, again):
        if message is None:
            use(plan)
            continue
        with pytest.raises((ValueError, RuntimeError), match=message):
            use(plan)


def test_code_that_its_library_lacks() -> None:
    function = hand_written()["increment"]
    with pytest.raises(ValueError, match="a library without the function decrement"):
        again(replace(increment(), kernels={"increment": Function(function.library, "decrement")}))
