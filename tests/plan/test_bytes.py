"""Plans as bytes: what is written is what is read, and what is no plan is refused with the reason."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from smelt.codegen.llvm.host_cpu import host, processor
from smelt.codegen.plan_loading import load
from smelt.errors import NeedsFixedSize, PlanError
from smelt.graph.ir import TensorSpec
from smelt.graph.subgraphs import RUN_GRAPHS, Choice, Handle, Inner
from smelt.plan.machine_code import Block, Function, Library, Processor
from smelt.plan.plan_printer import print_plan
from smelt.plan.serialization import HEADER, MAGIC, VERSION, from_bytes, to_bytes
from smelt.plan.steps import Alloc, Aten, BumpVersion, Free, Launch, ParallelLaunch, Plan, Reg, Step, View
from smelt.plan.value_encoding import READERS, Reader, Writer
from smelt.shapes.expr import Sym
from tests.harness.kernels import hand_written

aten = torch.ops.aten
CPU, F32 = torch.device("cpu"), torch.float32


def again(plan: Plan) -> Plan:
    """`plan` after a journey; the same bytes leave from there."""
    data = to_bytes(plan)
    read = from_bytes(data)
    assert to_bytes(read) == data
    assert (read.steps, read.outputs, read.numbers) == (plan.steps, plan.outputs, plan.numbers)
    assert print_plan(read) == print_plan(plan)
    return read


def alloc(out: int, *shape: int, arena: int | None = None) -> Alloc:
    return Alloc(out, shape, torch.empty(shape, device="meta").stride(), F32, CPU, arena)


def increment(n: int = 8) -> Plan:
    """x + 1 for `n` elements."""
    steps = (alloc(1, n), Launch("increment", (0, 1), n, 1024, "model.py:3 in f"))
    return Plan(1, (), 2, steps, (1,), kernels=hand_written())


# ---- what is written is read


def value(v: object) -> object:
    writer = Writer({})
    writer.value(v)
    reader = Reader(bytes(writer.data), {})
    read = reader.value()
    assert reader.at_end()
    return read


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


TENSORS = [
    torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(7)[2:5], torch.randn(2, 3, 4).permute(2, 0, 1)[:, 1:],
    torch.randn(3).expand(4, 3), torch.empty(0, 3), torch.tensor(2.5), torch.randn(4).bfloat16(),
    torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64).conj(), torch.tensor([True, False]),
    torch.arange(5, dtype=torch.uint8), torch.nn.Parameter(torch.randn(2)),
]  # fmt: skip


@pytest.mark.parametrize("t", TENSORS, ids=lambda t: f"{t.dtype}{list(t.shape)}")
def test_tensors(t: torch.Tensor) -> None:
    read = value(t)
    assert isinstance(read, torch.Tensor) and read.dtype == t.dtype and read.stride() == t.stride()
    assert torch.equal(read, t) and not read.requires_grad


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
    for p in (plan, again(plan)):
        written = y.clone()
        runs.append([*(load(p)((x, written))), written])
    a, none, b, same, w = runs[0]
    assert torch.equal(a, torch.cat([x[4:] + 2, torch.arange(3.0)])) and none is None and same is x
    for one, other in zip(*runs):
        assert one is other or torch.equal(one, other)


def test_numbers_are_inputs_again() -> None:
    plan = Plan(2, (), 3, (Aten(aten.mul.Tensor, (Reg(0), Reg(1)), {}, (2,)),), (2,), numbers=(1,))
    assert torch.equal(load(again(plan))((torch.arange(3), 2.5))[0], torch.arange(3) * 2.5)


def test_symbolic_sizes() -> None:
    """They travel, and are refused where numbers are needed."""
    steps = (
        Alloc(1, (N, M + 1), (M + 1, 1), F32, CPU),
        Launch("increment", (0, 1), N * (M + 1) // 4, 16),
        View(2, 1, (N,), (M + 1,), M),
    )
    plan = Plan(1, (), 3, steps, (1, 2), kernels=hand_written())
    assert "r1 = alloc float32[n, m + 1] stride [m + 1, 1] own memory" in print_plan(again(plan))
    with pytest.raises(NeedsFixedSize, match="not n"):
        load(plan)


# ---- machine code


ELSEWHERE = """
import sys, torch
from smelt.codegen.plan_loading import load
from smelt.plan.serialization import from_bytes
data = sys.stdin.buffer.read()
(y,) = load(from_bytes(data))((torch.arange(8.0),))
print(y.tolist())
"""


def test_another_process_runs_it() -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=to_bytes(increment()), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.decode().strip() == str(torch.arange(1.0, 9.0).tolist())


def test_code_outlives_the_plan_that_was_loaded() -> None:
    native = load(again(increment()))
    assert torch.equal(native((torch.zeros(8),))[0], torch.ones(8))


def test_a_processor_that_lacks_a_feature_refuses() -> None:
    here = processor(host())
    future = replace(here, name="znver9", features=here.features + ",+telepathy")
    library = Library(future, hand_written()["increment"].library.objects, ("increment",))
    plan = again(replace(increment(), kernels={"increment": Function(library, "increment")}))
    with pytest.raises(PlanError, match="znver9.* lacks telepathy"):
        load(plan)
    other = replace(library.processor, triple="riscv64-unknown-linux-gnu")
    plan = replace(plan, kernels={"increment": Function(replace(library, processor=other), "increment")})
    with pytest.raises(PlanError, match="code for riscv64"):
        load(again(plan))


def test_how_a_gpu_runs_code_is_kept() -> None:
    processor = Processor("nvptx64-nvidia-cuda", "sm_90", "+ptx80")
    library = Library(processor, (b".version 8.0",), ("increment",))
    code = Function(library, "increment", Block(threads=128, shared=2048))
    with pytest.raises(PlanError, match="for several launches"):
        again(replace(increment(), kernels={"increment": replace(code, block=Block(128, 0, parts=2))}))
    read = again(replace(increment(), kernels={"increment": code})).kernels["increment"]
    assert read.block == code.block
    assert read.library.processor == processor and read.library.objects == library.objects


def test_launches_that_are_one_on_a_gpu() -> None:
    library = Library(Processor("nvptx64-nvidia-cuda", "sm_90", ""), (b"",), ("f",))
    kernels = {name: Function(library, "f", Block(128, 0, parts=2)) for name in ("f", "g")}
    launch = Launch("f", (0, 1), 8, 8, by_value=((0, 4),))
    plan = replace(
        increment(), kernels=kernels, steps=(alloc(1, 8), ParallelLaunch((launch, launch), (1, 1), 1))
    )
    read = again(plan)
    assert read.steps == plan.steps and read.kernels["f"].block == Block(128, 0, parts=2)
    assert print_plan(read).count("launch f(r0, r1) over 8 by 8") == 2
    for launches, message in {
        (launch, replace(launch, kernel="g")): "several kernels cannot be one",
        (launch, replace(launch, regs=(0,))): "several kernels cannot be one",
        (launch, launch, launch): "more than 2 launches",
    }.items():
        step = ParallelLaunch(launches, (1,) * len(launches), 1)
        with pytest.raises(PlanError, match=message):
            again(replace(plan, steps=(alloc(1, 8), step)))


def test_a_launch_without_code_is_refused() -> None:
    with pytest.raises(PlanError, match="without the code of increment"):
        load(replace(increment(), kernels={}))


# ---- what is refused


def test_what_has_no_form_in_bytes() -> None:
    step = Aten(aten.rand.generator, ([3],), {"generator": torch.Generator()}, (0,))
    with pytest.raises(PlanError, match="a Generator has no form"):
        to_bytes(Plan(0, (), 1, (step,), (0,)))
    inside = Aten(RUN_GRAPHS, (Handle.of(Inner(Choice(), ())), [Reg(0)]), {}, (1,))
    with pytest.raises(PlanError, match="a Handle has no form"):
        to_bytes(Plan(1, (), 2, (inside,), (1,)))
    with pytest.raises(PlanError, match="meta has no form|meta"):
        to_bytes(Plan(0, (torch.empty(2, device="meta"),), 1, (), (0,)))


def test_bytes_that_are_no_plan() -> None:
    for data in (b"", b"PK\x03\x04" * 20, to_bytes(increment())[:10]):
        with pytest.raises(ValueError, match="no plan of smelt"):
            from_bytes(data)


def test_another_version() -> None:
    data = to_bytes(increment())
    with pytest.raises(PlanError, match=f"version {VERSION + 1}; this smelt reads version {VERSION}"):
        from_bytes(MAGIC + (VERSION + 1).to_bytes(4, "little") + data[12:])


def test_truncated_and_damaged_bytes() -> None:
    data = to_bytes(increment())
    for n in range(HEADER.size, len(data), 97):
        with pytest.raises(PlanError, match="bytes of plan are expected"):
            from_bytes(data[:n])
        with pytest.raises(PlanError, match="checksum"):
            from_bytes(data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :])
    with pytest.raises(PlanError, match="bytes of plan are expected"):
        from_bytes(data + b"\0")


def sealed(body: bytes) -> bytes:
    """`body` under a header that fits it."""
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body)) + body


def test_an_unknown_operator_names_it() -> None:
    lib = torch.library.Library("smelt_test_bytes", "FRAGMENT")
    lib.define("gone(Tensor x) -> Tensor")
    step = Aten(torch.ops.smelt_test_bytes.gone.default, (Reg(0),), {}, (1,))
    body = to_bytes(Plan(1, (), 2, (step,), (1,)))[HEADER.size :]
    with pytest.raises(PlanError, match="unknown operator, smelt_test_bytes::lost.default"):
        from_bytes(sealed(body.replace(b"::gone", b"::lost")))


def test_another_torch() -> None:
    version = torch.__version__.encode()
    body = to_bytes(increment())[HEADER.size :].replace(version, b"9" * len(version), 1)
    with pytest.raises(PlanError, match="made with torch 999"):
        from_bytes(sealed(body))


def test_steps_that_break_an_invariant() -> None:
    with pytest.raises(PlanError, match="r7 is not defined here"):
        from_bytes(to_bytes(replace(increment(), steps=(Free((7,)),))))


TAGS = [tag[0] for tag in READERS]
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
def test_damage_that_the_checksum_does_not_see_is_an_error_or_a_plan(kind: str) -> None:
    """Never a crash of the process, nor another kind of exception."""
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
        Free((2, 3, 4)),
    )
    compiled = hand_written()["increment"].library
    code = Function(Library(compiled.processor, (b"object",), ("increment",)), "increment", Block(128, 0))
    plan = Plan(1, (torch.ones(2),), 6, steps, (5,), 64, kernels={"increment": code})
    body, rng = to_bytes(plan)[HEADER.size :], random.Random(kind)
    for _ in range(1000):
        changed = bytearray(body)
        for _ in range(rng.choice((1, 2, 3))):
            DAMAGE[kind](changed, rng.randrange(len(changed)), rng)
        try:
            print_plan(from_bytes(sealed(bytes(changed))))
        except PlanError:
            continue


def encoded(*values: object) -> bytes:
    writer = Writer({})
    for v in values:
        writer.value(v)
    return bytes(writer.data)


UNREADABLE = {
    "nested": (b"(\x01" * 5000, "nested more than 100 deep"),
    "count": (b"(" + b"\xff" * 20, "more than 64 bits"),
    "integer": (b"i\xac\x02" + b"\x01" * 300, "an integer of 300 bytes"),
    "key": (b"{\x02[\x00N", "a key that cannot be"),
    "symbol": (b"y\x01n" + encoded(3, 2), "a symbol from 3 to 2"),
    "product of sums": (
        b"z" + encoded(0) + b"\x01" + encoded(1) + b"\x01" + encoded(N + M),
        "has to be Atom",
    ),
    "division by true": (b"/" + encoded(N, True), "a divisor has to be"),
    "device": (b"D\x03cpu" + encoded(1 << 40), "a device of index"),
    "tensor of no dtype": (b"x" + encoded("float32", (), ()) + b"\x00", "has to be dtype"),
    "tensor of few bytes": (b"x" + encoded(F32, (2,), (1,)) + b"\x00", "0 bytes for a tensor"),
    "tensor without end": (b"x" + encoded(F32, (1 << 40, 1 << 40), (0, 0)) + b"\x00", "a tensor with sizes"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_values_that_cannot_be(name: str) -> None:
    data, message = UNREADABLE[name]
    with pytest.raises(PlanError, match=message):
        Reader(data, {}).value()


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
        (replace(alloc(1, 8), stride=()), "not as many strides as sizes"),
        (replace(alloc(1, 8), shape=(-8,)), "a negative size"),
        (Alloc(1, (N,), (1,), F32, CPU, arena=0), "a symbolic size in the arena"),
        (ParallelLaunch((Launch("increment", (0, 0), 8, 8),), (), 1), "not as many shares of work"),
        (Alloc(True, (8,), (1,), F32, CPU), "Alloc.out has to be int; a bool"),
        (Launch("increment", ("x",), 8, 8), r"Launch.regs has to be tuple\[int"),  # type: ignore[arg-type]
    ],
)
def test_steps_that_cannot_be(step: Step, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        from_bytes(to_bytes(replace(increment(), steps=(step,))))


def test_code_that_its_library_lacks() -> None:
    function = hand_written()["increment"]
    with pytest.raises(PlanError, match="a library without the function decrement"):
        from_bytes(to_bytes(replace(increment(), kernels={"x": Function(function.library, "decrement")})))
