"""`smelt.dump` and its overrides: files of what is compiled, which run, and can be edited."""

import os
import re
import runpy
import sys
import textwrap
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import smelt
from smelt import events
from smelt.capture.emit import torch_graph_overrides
from smelt.errors import ArtifactError, Unsupported
from smelt.graph import graph_overrides
from tests.harness.processes import start


def forward(inputs):
    x = inputs["x"].cos().cos()
    if x.mean() > 0.5:
        print(end="")
        x = x / 1.1
    return x * inputs["y"]


def two_cosines(x):
    return torch.cos(torch.cos(x))


def product(x, w):
    return torch.tanh(x @ w).sum()


def text(folder, name):
    return (folder / name).read_text()


def edit(folder, name, old, new):
    found = text(folder, name)
    assert old in found
    (folder / name).write_text(found.replace(old, new))


def run_file(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------- what is written


def test_each_entry_and_each_resume_function_has_its_files(tmp_path):
    inputs = {"x": torch.zeros(10), "y": torch.randn(10)}
    with smelt.dump(tmp_path / "new") as dump:
        compiled = smelt.compile(forward)
        result = compiled(inputs)
        compiled({k: v.double() for k, v in inputs.items()})
    torch.testing.assert_close(result, forward(inputs))
    folder = tmp_path / "new"
    names = {p.name for p in folder.iterdir()}
    assert {p.name for p in dump.files} == names
    kinds = ("frame.py", "torch.py", "aten.py", "loops.txt", "plan.txt", "ll")
    line = forward.__code__.co_firstlineno + 3
    resume = f"resume_in_forward_at_{line}"
    of_entry = {f"{f}.{n}.{k}" for f in ("forward", resume) for n in (0, 1) for k in kinds}
    assert names == of_entry | {f"{resume}.{n}.source.py" for n in (0, 1)}
    frame = text(folder, "forward.0.frame.py")
    assert "# is_tensor(L['inputs']['x'], torch.float32, shape=[10]" in frame
    assert "def compiled_forward(inputs_0, inputs):" in frame
    assert "# The graph ends here: data-dependent-condition" in frame
    source = text(folder, f"{resume}.0.source.py")
    assert '        print(end="")  # <-- continues here' in source and "def forward(inputs):" in source
    aten = text(folder, "forward.0.aten.py")
    assert (
        f'test_dump.py:{line - 2} in forward: x = inputs["x"].cos().cos()\n    cos = torch.ops.aten.cos'
        in aten
    )
    assert "torch.float64" in text(folder, "forward.1.frame.py")
    assert "kernel " in text(folder, "forward.0.loops.txt")
    assert "define void @" in text(folder, "forward.0.ll")
    assert "launch " in text(folder, "forward.0.plan.txt")


def test_generators_are_shown_from_one_yield_to_the_next(tmp_path):
    def walk(x):
        for i in range(2):
            yield x * i

    with smelt.dump(tmp_path):
        list(smelt.compile(walk)(torch.ones(2)))
    found = [p.read_text() for p in sorted(tmp_path.glob("step_of_walk.*.source.py"))]
    assert any("        yield x * i  # <-- continues here" in source for source in found), found


def test_names_are_the_same_in_the_next_run(tmp_path):
    def names(folder):
        with smelt.dump(folder):
            f = smelt.compile(product)
            f(torch.ones(2, 3), torch.ones(3, 2))
            smelt.compile(two_cosines)(torch.ones(2))
        return {p.name: p.read_bytes() for p in folder.iterdir()}

    assert names(tmp_path / "a") == names(tmp_path / "b")


def small_network():
    """Several activations whose masks are saved, in graphs of hundreds of nodes; batch norm and dropout beside."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(
            torch.nn.Conv2d(4, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
        )
        for _ in range(6)
    ]
    return torch.nn.Sequential(*layers, torch.nn.MaxPool2d(2))


def step(folder, override=False):
    """A step of training: the loss and the gradients."""
    model = small_network()
    with smelt.dump(folder, override=override):
        loss = smelt.compile(model)(torch.randn(2, 4, 8, 8)).square().mean()
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def test_graphs_of_training_are_the_same_in_the_next_compilation(tmp_path):
    step(tmp_path / "a")
    step(tmp_path / "b")
    for path in (tmp_path / "a").glob("*.py"):
        assert path.read_text() == text(tmp_path / "b", path.name), path.name


def test_training_has_joint_forward_and_backward(tmp_path, capsys):
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    with smelt.dump(tmp_path):
        smelt.compile(product)(x, w).backward()
    names = {p.name.removeprefix("product.0.") for p in tmp_path.iterdir()}
    assert {"joint.py", "forward.py", "backward.py", "backward.loops.txt", "backward.plan.txt"} <= names
    assert "# tanh " in text(tmp_path, "product.0.forward.py")  # what is saved
    assert "tanh_backward" in text(tmp_path, "product.0.backward.loops.txt")
    for kind in ("torch", "aten", "joint", "forward", "backward"):
        assert "tensor(" in run_file(tmp_path / f"product.0.{kind}.py", capsys)


def test_symbolic_sizes_and_tensors_that_are_not_spelled_out(tmp_path, capsys):
    table = torch.arange(100.0)

    def f(x):
        return x + torch.tensor([float(i) for i in range(70)]).sum() * table[:1]

    with smelt.dump(tmp_path):
        smelt.compile(f, dynamic=True)(torch.ones(4))
    for path in tmp_path.glob("f.0.*.py"):
        if "frame" not in path.name:
            assert "tensor(" in run_file(path, capsys)
    assert "s0 is a size of input" in text(tmp_path, "f.0.frame.py")


def test_operators_that_are_called_by_name_are_named_in_files(tmp_path, capsys):
    with smelt.dump(tmp_path):
        smelt.compile(lambda x: torch.ops.aten.hypot(x, x))(torch.ones(2))
    (path,) = tmp_path.glob("*.torch.py")
    assert "torch.ops.aten.hypot(x, x)" in path.read_text() and "tensor(" in run_file(path, capsys)


def test_a_compilation_that_begins_anew_takes_one_number(tmp_path):
    class Refuses:
        calls = 0

        def __call__(self, gm, example_inputs):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("not yet")
            return gm.forward

    f = smelt.compile(two_cosines, backend=Refuses())
    with smelt.dump(tmp_path):
        f(torch.ones(2))
        assert list(tmp_path.iterdir()) == []
        smelt.compile(two_cosines, backend="eager")(torch.ones(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "two_cosines.0.aten.py",
        "two_cosines.0.frame.py",
        "two_cosines.0.torch.py",
    ]


def test_what_cannot_be_written_does_not_end_a_call(tmp_path, caplog):
    folder = tmp_path / "gone"
    with smelt.dump(folder):
        folder.rmdir()
        torch.testing.assert_close(smelt.compile(two_cosines)(torch.ones(2)), two_cosines(torch.ones(2)))
    assert "cannot be written" in caplog.text
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), smelt.dump(tmp_path / "file"):
        pass


def test_nothing_is_left_on_behind_it(tmp_path):
    x = torch.ones(2)
    with smelt.dump(tmp_path, override=True):
        f = smelt.compile(two_cosines)
    f(x)
    assert list(tmp_path.iterdir()) == []
    assert events._subscribers == []
    assert graph_overrides._editors == torch_graph_overrides._editors == []


def test_threads_have_files_of_their_own(tmp_path):
    fs = [smelt.compile(product), smelt.compile(two_cosines)]
    with smelt.dump(tmp_path):
        calls = [
            lambda: fs[0](torch.ones(2, 3, requires_grad=True), torch.ones(3, 2)).backward(),
            lambda: fs[1](torch.ones(2, requires_grad=True)).sum().backward(),
        ]
        threads = [threading.Thread(target=c) for c in calls]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert "tanh" in text(tmp_path, "product.0.backward.loops.txt")
    assert "cos" in text(tmp_path, "two_cosines.0.backward.loops.txt")


# ---------------------------------------------------------------------------------------------------------- debuggers


def lines_run(folder, call):
    """The lines of files in `folder` that run during a call, as a debugger sees them."""
    seen = []

    def trace(frame, event, arg):
        if frame.f_code.co_filename.startswith(str(folder)):
            if event == "line":
                seen.append((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
            return trace
        return None

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return [text(folder, name).splitlines()[line - 1].strip() for name, line in seen]


def test_frames_and_graphs_are_stepped_through_in_their_files(tmp_path):
    f = smelt.compile(
        lambda x: [two_cosines(x), x], backend="aot_eager", options={"compile_under_tracers": True}
    )
    x = torch.ones(2)
    with smelt.dump(tmp_path):
        f(x)
    lines = lines_run(tmp_path.resolve(), lambda: f(x))
    assert any(line.startswith("t0, = graph(") for line in lines)
    assert any(line.startswith("cos = torch.ops.aten.cos.default(x)") for line in lines)
    assert any(line.startswith("return [t0,") for line in lines)


def test_a_backward_is_stepped_through(tmp_path):
    f = smelt.compile(two_cosines, backend="aot_eager")
    x = torch.ones(2, requires_grad=True)
    with smelt.dump(tmp_path):
        f(x).sum().backward()
    out = f(x).sum()
    torch.testing.assert_close(x.grad, torch.autograd.grad(two_cosines(x).sum(), x)[0])
    with torch.autograd.set_multithreading_enabled(False):
        lines = lines_run(tmp_path.resolve(), out.backward)
    assert any(line.startswith("sin = torch.ops.aten.sin.default(") for line in lines)


# ---------------------------------------------------------------------------------------------------------- overrides


def dumped(folder, function, *inputs, **options):
    with smelt.dump(folder):
        return smelt.compile(function, **options)(*inputs)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_an_edited_graph_is_compiled_in_place_of_the_captured_one(tmp_path, backend):
    x = torch.randn(3, 4)
    dumped(tmp_path, two_cosines, x)
    edit(
        tmp_path,
        "two_cosines.0.aten.py",
        "cos_1 = torch.ops.aten.cos.default(cos)",
        "cos_1 = cos.relu() * 2 + x",
    )
    edit(tmp_path, "two_cosines.0.aten.py", "x = None", "pass")
    before = text(tmp_path, "two_cosines.0.aten.py")
    f = smelt.compile(two_cosines, backend=backend)
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(f(x), x.cos().relu() * 2 + x)
    torch.testing.assert_close(f(x), x.cos().relu() * 2 + x)
    assert text(tmp_path, "two_cosines.0.aten.py") == before
    if backend == "smelt":
        assert "relu" in text(tmp_path, "two_cosines.0.loops.txt")
    torch.testing.assert_close(smelt.compile(two_cosines)(x), two_cosines(x))


def test_what_was_not_edited_is_compiled_as_captured(tmp_path):
    x = torch.randn(3)
    dumped(tmp_path, two_cosines, x)
    edit(tmp_path, "two_cosines.0.aten.py", "import operator", "import operator  # a comment is no edit")
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(two_cosines)(x), two_cosines(x))


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_edited_forwards_and_backwards_train(tmp_path, backend):
    """The backward is made to clip what it gives."""
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    dumped(tmp_path, product, x, w).backward()
    wanted = [t.grad.clamp(-0.1, 0.1) for t in (x, w)]
    x.grad = w.grad = None
    lines = text(tmp_path, "product.0.backward.py").splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if line.startswith("    return "))
    given = lines[place].removeprefix("    return ").strip()
    lines[place] = f"    return tuple(g.clamp(-0.1, 0.1) for g in {given})\n"
    (tmp_path / "product.0.backward.py").write_text("".join(lines))
    edit(tmp_path, "product.0.forward.py", "sum = torch.ops.aten.sum.default(tanh)", "sum = tanh.sum() + 1")
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(product, backend=backend)(x, w)
        result.backward()
    torch.testing.assert_close(result, product(x, w) + 1)
    torch.testing.assert_close([x.grad, w.grad], wanted)


def test_graphs_that_come_from_their_files_do_what_the_captured_ones_do(tmp_path):
    wanted = step(tmp_path)
    for kind in ("forward", "backward"):
        edit(tmp_path, f"Sequential.0.{kind}.py", "):\n", "):\n    edited = True\n")
    torch.testing.assert_close(step(tmp_path, override=True), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_an_edited_joint_graph_trains(tmp_path, backend):
    """A sine in place of the tanh, with its gradients; forward and backward are cut anew."""
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    dumped(tmp_path, product, x, w)
    name = "product.0.joint.py"
    edit(tmp_path, name, "torch.ops.aten.tanh.default(mm);  mm = None", "mm.sin()")
    edit(tmp_path, name, "torch.ops.aten.tanh_backward.default(expand, tanh)", "2 * expand * mm.cos()")
    before = text(tmp_path, name)
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(product, backend=backend)(x, w)
        result.backward()
    wanted = (x @ w).sin().sum()
    torch.testing.assert_close(result, wanted)
    gradients = torch.autograd.grad(2 * wanted, [x, w])
    torch.testing.assert_close([x.grad, w.grad], list(gradients))
    assert text(tmp_path, name) == before and "cos" in text(tmp_path, "product.0.backward.py")


def test_forwards_and_backwards_that_are_edited_beside_the_joint_graph_are_compiled(tmp_path):
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    dumped(tmp_path, product, x, w)
    edit(tmp_path, "product.0.joint.py", "):\n", "):\n    tangents_1 = tangents_1 * 3\n")
    edit(tmp_path, "product.0.forward.py", "sum = torch.ops.aten.sum.default(tanh)", "sum = tanh.sum() + 1")
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(product)(x, w)
        result.backward()
    torch.testing.assert_close(result, product(x, w) + 1)
    torch.testing.assert_close(x.grad, *torch.autograd.grad(3 * product(x, w), x))


@pytest.mark.parametrize("name", ["joint", "forward"])
def test_gradients_with_a_history_are_those_of_edited_graphs_or_an_error(tmp_path, name):
    """What differentiates again would be the graph that nobody has edited."""

    def f(x):
        return x.sin().sum()

    x = torch.randn(3, requires_grad=True)
    dumped(tmp_path, f, x)
    edit(tmp_path, f"f.0.{name}.py", "):\n", "):\n    primals_1 = primals_1 * 2\n")
    with smelt.dump(tmp_path, override=True):
        (gradient,) = torch.autograd.grad(smelt.compile(f)(x), x, create_graph=True)
    torch.testing.assert_close(gradient, (2 * x if name == "joint" else x).cos())
    with pytest.raises(RuntimeError, match="differentiated once"):
        gradient.sum().backward()


def test_joint_graphs_that_come_from_their_files_keep_what_the_captured_ones_keep(tmp_path):
    """Results, gradients, what dropout draws and what is saved."""
    wanted = step(tmp_path)
    saved = text(tmp_path, "Sequential.0.forward.py").split("import operator")[0]
    edit(tmp_path, "Sequential.0.joint.py", "):\n", "):\n    edited = True\n")
    torch.testing.assert_close(step(tmp_path, override=True), wanted, rtol=0, atol=0)
    again = text(tmp_path, "Sequential.0.forward.py").split("import operator")[0]
    assert [line.split()[2:5] for line in again.splitlines()] == [
        line.split()[2:5] for line in saved.splitlines()
    ]


def test_what_a_checkpoint_computes_again_stays_in_the_backward(tmp_path):
    def f(x):
        return checkpoint(lambda x: torch.sin(x.exp() @ x).exp(), x, use_reentrant=False).sum()

    x = torch.randn(4, 4, requires_grad=True)
    dumped(tmp_path, f, x)
    saved = text(tmp_path, "f.0.forward.py").split("import operator")[0].splitlines()[-2]
    edit(tmp_path, "f.0.joint.py", "):\n", "):\n    edited = True\n")
    with smelt.dump(tmp_path, override=True):
        smelt.compile(f)(x).backward()
    torch.testing.assert_close(x.grad, *torch.autograd.grad(f(x), x))
    assert saved in text(tmp_path, "f.0.forward.py")


@pytest.mark.parametrize("at_once", [False, True])
def test_joint_graphs_write_inputs_once_and_read_what_was_there(tmp_path, at_once):
    """The gradient reads what is written; `at_once`: after it was written."""

    def f(x, mean):
        result = x * mean.exp()
        with torch.no_grad():
            mean.mul_(0.5)
        return result

    x, mean = torch.randn(3, requires_grad=True), torch.ones(3)
    dumped(tmp_path, f, x, mean)
    write = "primals_2.mul_(0.25)" if at_once else "0"
    edit(tmp_path, "f.0.joint.py", "torch.ops.aten.mul.Tensor(primals_2, 0.5)", write)
    edit(tmp_path, "f.0.joint.py", "(tangents_1, exp);  exp =", "(tangents_1, primals_2.exp());  exp =")
    if at_once:
        edit(tmp_path, "f.0.joint.py", "copy = torch.ops.aten.copy_.default(primals_2, mul_3)", "copy = 0")
    else:
        edit(tmp_path, "f.0.joint.py", "primals_2, mul_3)", "primals_2, primals_2 * 0.25)")
    before = mean.clone()
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(f)(x, mean)
        result.sum().backward()
    torch.testing.assert_close(result, x * before.exp())
    torch.testing.assert_close(x.grad, (before / 4 if at_once else before).exp())
    torch.testing.assert_close(mean, before / 4)


def test_gradients_of_edited_graphs_lie_as_they_like(tmp_path):
    """The captured gradients are the tangent itself, and one number for all elements."""

    def f(x, y):
        return x + y.sum()

    given = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for kind in ("joint", "backward"):
        dumped(tmp_path, f, *given)
        path = tmp_path / f"f.0.{kind}.py"
        found = path.read_text()
        line = next(line for line in found.splitlines() if line.startswith("    return "))
        more = (
            line.replace("    return ", "    made = ")
            + "\n    return (*made[:-2], *(2 * g for g in made[-2:]))"
        )
        path.write_text(found.replace(line, more))
        with smelt.dump(tmp_path, override=True):
            gradients = torch.autograd.grad(smelt.compile(f)(*given).sum(), given)
        torch.testing.assert_close(gradients, (torch.full((3,), 2.0), torch.full((3,), 6.0)))
        path.unlink()


UNFIT_JOINTS = {
    "takes": ("(primals_1, primals_2, tangents_1)", "(primals_1, tangents_1)", r"forward takes \(primals_1, tangents_1\)"),
    "result": ("return (sum", "return (sum * tangents_1", r"joint.py:\d+: result 0 of forward is computed from tangents"),
    "gradient": ("mm_1)", "mm_1.double())", r"result 1 of forward is float64\[3, 4\]"),
    "writes": ("return (", "primals_1.add_(1); return (", "forward writes primals_1, the captured graph none"),
    "writes tangents": ("return (", "tangents_1.add_(1); return (", "forward writes tangents_1, the captured graph none"),
    "syntax": ("return (", "return ((", r"joint.py:\d+: "),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT_JOINTS)
def test_a_joint_graph_that_does_not_fit_is_an_error(tmp_path, name):
    old, new, message = UNFIT_JOINTS[name]
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    dumped(tmp_path, product, x, w)
    edit(tmp_path, "product.0.joint.py", "tangents_1 = None", "edited = True")
    edit(tmp_path, "product.0.joint.py", "primals_1 = None", "pass") if name == "writes" else None
    edit(tmp_path, "product.0.joint.py", old, new)
    f = smelt.compile(product)
    with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match=message):
        f(x, w)
    torch.testing.assert_close(f(x, w), product(x, w))


def test_what_a_joint_graph_writes_is_not_computed_from_tangents(tmp_path):
    def f(x, mean):
        mean.add_(1)
        return (x * 2).sum()

    x, mean = torch.randn(3, requires_grad=True), torch.ones(())
    dumped(tmp_path, f, x, mean)
    edit(tmp_path, "f.0.joint.py", "tangents_1 = None", "pass")
    edit(tmp_path, "f.0.joint.py", "primals_2 = add_1 = None", "primals_2.copy_(tangents_1)")
    with (
        smelt.dump(tmp_path, override=True),
        pytest.raises(ArtifactError, match="written to primals_2 is computed"),
    ):
        smelt.compile(f)(x, mean)


def test_writes_of_inputs_stay(tmp_path):
    def f(x):
        return x.mul_(2).sum()

    dumped(tmp_path, f, torch.ones(3))
    edit(tmp_path, "f.0.aten.py", "torch.ops.aten.mul.Tensor(x, 2)", "torch.ops.aten.mul.Tensor(x, 3)")
    x = torch.ones(3)
    with smelt.dump(tmp_path, override=True):
        assert smelt.compile(f)(x) == 9
    assert x.tolist() == [3, 3, 3]


def test_results_in_memory_of_the_inputs_are_copied(tmp_path):
    x = torch.randn(3)
    dumped(tmp_path, two_cosines, x)
    edit(tmp_path, "two_cosines.0.aten.py", "return (cos_1,)", "return (x.view(3),)")
    edit(tmp_path, "two_cosines.0.aten.py", "x = None", "pass")
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(two_cosines)(x)
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_results_that_are_views_stay_views(tmp_path, backend):
    def f(x):
        return x.t(), x * 2

    x = torch.randn(2, 3)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.aten.py", "(x, 2)", "(x, 3)")
    with smelt.dump(tmp_path, override=True):
        view, tripled = smelt.compile(f, backend=backend)(x)
    assert view.data_ptr() == x.data_ptr() and torch.equal(view, x.t())
    torch.testing.assert_close(tripled, x * 3)
    edit(
        tmp_path, "f.0.aten.py", "return (", "t = torch.empty_strided((3, 2), (1, 3)).fill_(1)\n    return ("
    )
    with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match="must be a view of input x"):
        smelt.compile(f, backend=backend)(x)


def test_a_break_is_where_it_was_and_each_part_can_be_edited(tmp_path):
    inputs = {"x": torch.zeros(10), "y": torch.randn(10)}
    dumped(tmp_path, forward, inputs)
    (resume,) = tmp_path.glob("resume*.aten.py")
    edit(tmp_path, resume.name, "1.1", "2.2")
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(forward)(inputs), forward(inputs) / 2)


BAD = {
    "takes": ("def forward(x):", "def forward(x, y):", r"forward takes \(x, y\), the captured graph \(x\)"),
    "no function": ("def forward(x):", "def backward(x):", r"defines no function forward\(x\)"),
    "count": (
        "return (cos_1,)",
        "return (cos_1, cos_1)",
        "returns 2 results, expected is a tuple of 1: float32",
    ),
    "no tuple": ("return (cos_1,)", "return cos_1", "expected is a tuple of 1"),
    "dtype": (
        "return (cos_1,)",
        "return (cos_1.double(),)",
        r"result 0 .* is float64\[3\], .* gives float32\[3\]",
    ),
    "shape": (
        "return (cos_1,)",
        "return (cos_1[:2],)",
        r"result 0 .* is float32\[2\], .* gives float32\[3\]",
    ),
    "None": ("return (cos_1,)", "return (None,)", "result 0 .* is None"),
    "writes": ("return (cos_1,)", "x.add_(1); return (cos_1,)", "forward writes x, the captured graph none"),
    "syntax": ("return (cos_1,)", "return (cos_1,", r"two_cosines.0.aten.py:\d+: "),
    "raises": ("return (cos_1,)", "return (nothing,)", r"aten.py:\d+: NameError"),
    "reads": ("return (cos_1,)", "return (cos_1 if cos_1.sum() > 0 else x,)", r"aten.py.*: "),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_stand_in_is_an_error(tmp_path, name):
    old, new, message = BAD[name]
    x = torch.ones(3)
    dumped(tmp_path, two_cosines, x)
    edit(tmp_path, "two_cosines.0.aten.py", "x = None", "pass")
    edit(tmp_path, "two_cosines.0.aten.py", old, new)
    f = smelt.compile(two_cosines)
    with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match=message):
        f(x)
    torch.testing.assert_close(f(x), two_cosines(x))


def test_sizes_that_change_are_refused(tmp_path):
    x = torch.ones(3)
    dumped(tmp_path, two_cosines, x, dynamic=True)
    edit(tmp_path, "two_cosines.0.aten.py", "aten.cos.default(cos)", "aten.sin.default(cos)")
    for backend in ("smelt", "aot_eager"):
        f = smelt.compile(two_cosines, dynamic=True, backend=backend)
        with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match="dynamic=False"):
            f(x)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_files_that_are_not_compiled_are_said_to_be(tmp_path, caplog, backend):
    """An aten graph where gradients are needed, or where the calls of the program run one by one."""
    x = torch.ones(3, requires_grad=backend == "smelt")
    dumped(tmp_path, two_cosines, x)
    edit(tmp_path, "two_cosines.0.aten.py", "cos.default(cos)", "sin.default(cos)")
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(two_cosines, backend=backend)(x), two_cosines(x))
    assert "two_cosines.0.aten.py is edited, but not compiled: edit the .torch.py file" in caplog.text
    assert "sin.default(cos)" in text(tmp_path, "two_cosines.0.aten.py")


def test_a_file_that_nobody_has_edited_is_none_when_the_program_has_changed(tmp_path, caplog):
    def f(x):
        return x * factor + 1

    x, factor = torch.ones(3), 2
    dumped(tmp_path, f, x)
    factor = 3
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(f)(x), f(x))
    assert "mul.Tensor(x, 3)" in text(tmp_path, "f.0.aten.py")
    assert caplog.text == ""


def test_the_environment_does_it_for_a_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import smelt, torch

        def f(x):
            return x * 2

        print(smelt.compile(f)(torch.ones(2)).tolist())
        """)
    )
    folder = tmp_path / "files"

    def run(**variables):
        ran = start(f"import runpy; runpy.run_path({str(program)!r})", env={**os.environ, **variables})
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert run(SMELT_DUMP=str(folder)) == "[2.0, 2.0]\n"
    edit(folder, "f.0.aten.py", "(x, 2)", "(x, 5)")
    edit(folder, "f.0.frame.py", "return t0", "return t0 + 0.5")
    before = {p: p.read_bytes() for p in folder.iterdir()}
    assert run(SMELT_OVERRIDE=str(folder)) == "[5.5, 5.5]\n"
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    assert run(SMELT_OVERRIDE=str(folder), SMELT_DUMP=str(folder)) == "[5.5, 5.5]\n"
    assert run() == "[2.0, 2.0]\n"
    before = {p: p.read_bytes() for p in folder.iterdir()}
    second = {"RANK": "1", "WORLD_SIZE": "2"}  # as torchrun sets them
    assert run(SMELT_OVERRIDE=str(folder), SMELT_DUMP=str(folder), **second) == "[5.5, 5.5]\n"
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    assert {p.name for p in tmp_path.joinpath("files.rank1").iterdir()} >= {"f.0.aten.py", "f.0.frame.py"}


# -------------------------------------------------------------------------------------------------- edited programs


def sines(x):
    return torch.sin(torch.cos(x))


def edited_sines(folder, x, **options):
    """`two_cosines` with a sine in its file."""
    dumped(folder, two_cosines, x, **options)
    edit(folder, "two_cosines.0.torch.py", "torch.cos(cos)", "torch.sin(cos)")
    return "two_cosines.0.torch.py"


@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager"])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_edited_program_is_compiled_in_place_of_the_captured_one(tmp_path, backend, needs_grad):
    """Its gradients are its own, second ones too. It has files of its own."""
    x = torch.randn(3, requires_grad=needs_grad)
    name = edited_sines(tmp_path, x)
    before = text(tmp_path, name)
    f = smelt.compile(two_cosines, backend=backend)
    with smelt.dump(tmp_path, override=True):
        result = f(x)
    torch.testing.assert_close(result, sines(x))
    torch.testing.assert_close(f(x), sines(x))
    if needs_grad:
        gradients = [torch.autograd.grad(g(x).sum(), x, create_graph=True)[0] for g in (f, sines)]
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(*(torch.autograd.grad(g.sum(), x)[0] for g in gradients))
    assert text(tmp_path, name) == before
    if backend == "smelt":
        kind = "forward" if needs_grad else "aten"
        assert "sin" in text(tmp_path, f"two_cosines.0.torch.0.{kind}.py")
    torch.testing.assert_close(smelt.compile(two_cosines)(x), two_cosines(x))


def test_programs_that_come_from_their_files_do_what_the_captured_ones_do(tmp_path):
    """To the bit: buffers that are written, dropout."""
    wanted = step(tmp_path)
    edit(tmp_path, "Sequential.0.torch.py", "):\n", "):\n    edited = True\n")
    torch.testing.assert_close(step(tmp_path, override=True), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_an_edited_program_draws_what_it_draws_in_eager(tmp_path, backend):
    def f(x, p=0.5):
        return torch.nn.functional.dropout(torch.rand_like(x) * x, p)

    x = torch.randn(50, requires_grad=True)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.torch.py", "p=0.5", "p=0.25")
    compiled = smelt.compile(f, backend=backend)
    for _ in range(2):
        torch.manual_seed(3)
        with smelt.dump(tmp_path, override=True):
            result = compiled(x)
        torch.manual_seed(3)
        torch.testing.assert_close(result, f(x, 0.25), rtol=0, atol=0)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_edited_program_writes_what_it_likes(tmp_path, needs_grad):
    def f(x, y):
        y.add_(x.detach())
        return x * 2, x.t()

    x, y = torch.randn(2, 3, requires_grad=needs_grad), torch.zeros(2, 3)
    dumped(tmp_path, f, x, y)
    edit(tmp_path, "f.0.torch.py", "    return (", "    y.mul_(3)\n    return (")
    edit(tmp_path, "f.0.torch.py", "y = detach = None", "pass")
    y.zero_()
    with smelt.dump(tmp_path, override=True):
        doubled, view = smelt.compile(f)(x, y)
    torch.testing.assert_close(doubled, 2 * x)
    torch.testing.assert_close(y, 3 * x.detach())
    assert view._base is x and torch.equal(view, x.t())


def test_an_edited_program_takes_sizes_and_numbers_that_change(tmp_path):
    def f(x, scale):
        with torch.no_grad():
            mean = x.mean(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            square = x.t() @ x
        return {"rows": (x * scale - mean).reshape(-1), "n": x.shape[0], "square": square}

    def g(x, scale):
        found = f(x, scale)
        return {**found, "rows": found["rows"] + 1}

    def calls(function):
        for n, scale in ((4, 2.5), (5, 3.5), (9, 7.5), (3, 1.5)):
            x = torch.linspace(0, 1, 3 * n).reshape(n, 3).requires_grad_()
            result = function(x, scale)
            yield result, torch.autograd.grad(result["rows"].sum() + result["square"].sum(), x)

    with smelt.dump(tmp_path):
        list(calls(smelt.compile(f, dynamic=True)))
    assert "def forward(x, scale):" in text(tmp_path, "f.1.torch.py")
    edit(tmp_path, "f.1.torch.py", "return (reshape", "return (reshape + 1")
    with smelt.dump(tmp_path, override=True):
        found = list(calls(smelt.compile(f, dynamic=True)))
    torch.testing.assert_close(found, [next(calls(f)), *list(calls(g))[1:]])
    assert not (tmp_path / "f.2.frame.py").exists() and not torch.is_autocast_enabled("cpu")


def test_settings_of_before_are_those_of_afterwards(tmp_path):
    """Also where an edit leaves out what puts them back, and in inference mode."""

    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y + 1

    x = torch.randn(3)
    dumped(tmp_path, f, x)
    edit(
        tmp_path, "f.0.torch.py", "    return (", "    torch.set_autocast_enabled('cpu', True)\n    return ("
    )
    edit(tmp_path, "f.0.torch.py", "mul(2)", "mul(3)")
    for backend in ("smelt", "eager"):
        with smelt.dump(tmp_path, override=True):
            result = smelt.compile(f, backend=backend)(x)
        torch.testing.assert_close(result, x * 3 + 1)
        assert not torch.is_autocast_enabled("cpu") and not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled() and result.is_inference() == f(x).is_inference()


def test_an_edited_program_may_break(tmp_path, capsys):
    x = torch.randn(3, requires_grad=True)
    name = edited_sines(tmp_path, x)
    edit(tmp_path, name, "    return (", "    print('sum', x.detach().sum().item())\n    return (")
    edit(tmp_path, name, "x = None", "pass")
    f = smelt.compile(two_cosines)
    with smelt.dump(tmp_path, override=True):
        result = f(x)
    torch.testing.assert_close(result, sines(x))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), torch.autograd.grad(sines(x).sum(), x))
    assert "sum" in capsys.readouterr().out


def test_a_whole_graph_is_asked_of_an_edited_program_too(tmp_path):
    x = torch.randn(3)
    name = edited_sines(tmp_path, x)
    edit(tmp_path, name, "    return (", "    breakpoint if x.sum().tolist() > 0 else 0\n    return (")
    edit(tmp_path, name, "x = None", "pass")
    with smelt.dump(tmp_path, override=True), pytest.raises(Unsupported):
        smelt.compile(two_cosines, fullgraph=True)(x)


def test_an_edited_program_is_stepped_through_in_its_file(tmp_path):
    x = torch.randn(3)
    edited_sines(tmp_path, x)
    f = smelt.compile(two_cosines, backend="eager", options={"compile_under_tracers": True})
    with smelt.dump(tmp_path, override=True):
        f(x)
    lines = lines_run(tmp_path.resolve(), lambda: f(x))
    assert any(line.startswith("cos_1 = torch.sin(cos)") for line in lines), lines


def test_objects_of_the_program_are_there_in_an_edited_program(tmp_path):
    """A checkpoint, which reads parameters by itself."""
    layer = torch.nn.Linear(3, 3)

    def f(x):
        return checkpoint(lambda x: layer(x).exp(), x, use_reentrant=False) * 2

    x = torch.randn(2, 3, requires_grad=True)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.torch.py", "mul(2)", "mul(3)")
    with smelt.dump(tmp_path, override=True):
        result = smelt.compile(f)(x)
    torch.testing.assert_close(result, f(x) * 1.5)
    leaves = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(r.sum(), leaves) for r in (result, f(x) * 1.5)]
    torch.testing.assert_close(*gradients)


def test_edited_frames_run_around_edited_programs_and_those_before_other_graphs(tmp_path, caplog):
    def f(x):
        return [two_cosines(x), x]

    x = torch.randn(3)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.frame.py", "return [t0", "return [t0 + 1")
    edit(tmp_path, "f.0.torch.py", "torch.cos(cos)", "torch.sin(cos)")
    edit(tmp_path, "f.0.aten.py", "cos.default(cos)", "exp.default(cos)")
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(f)(x)[0], sines(x) + 1)
    assert "f.0.aten.py is edited, but not compiled: f.0.torch.py is edited, too" in caplog.text


def test_files_of_an_edited_program_can_be_edited(tmp_path):
    x = torch.randn(3)
    edited_sines(tmp_path, x)
    with smelt.dump(tmp_path, override=True):
        smelt.compile(two_cosines)(x)
    edit(tmp_path, "two_cosines.0.torch.0.aten.py", "sin.default(cos)", "exp.default(cos)")
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(two_cosines)(x), x.cos().exp())


UNFIT_PROGRAMS = {
    "takes": ("forward(x)", "forward(x, y)", r"torch.py:\d+: forward takes \(x, y\), the captured graph \(x\)"),
    "no function": ("def forward(x)", "def backward(x)", r"defines no function forward\(x\)"),
    "count": ("(cos_1,)", "(cos_1, cos_1)", r"torch.py:\d+: forward returns 2 results, expected is a tuple of 1: float32"),
    "no tuple": ("(cos_1,)", "cos_1", r"torch.py:\d+: forward returns Tensor, expected is a tuple of 1"),
    "dtype": ("(cos_1,)", "(cos_1.double(),)", r"torch.py:\d+: result 0 .* is float64\[3\], .* gives float32\[3\]"),
    "shape": ("(cos_1,)", "(cos_1[:2],)", r"result 0 .* is float32\[2\], .* gives float32\[3\]"),
    "stride": ("(cos_1,)", "(torch.stack([cos_1] * 2, 1)[:, 0],)", r"is float32\[3\] strides \(2\), .* gives float32\[3\]"),
    "None": ("(cos_1,)", "(None,)", "result 0 of forward is NoneType"),
    "number": ("(cos_1,)", "(3.0,)", "result 0 of forward is float"),
    "syntax": ("(cos_1,)", "(cos_1,", r"two_cosines.0.torch.py:\d+: "),
    "import": ("import operator", "import no_such_module", r"torch.py:\d+: running it failed: ModuleNotFoundError"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT_PROGRAMS)
def test_a_program_that_does_not_fit_is_an_error(tmp_path, name):
    old, new, message = UNFIT_PROGRAMS[name]
    x = torch.ones(3)
    file = edited_sines(tmp_path, x)
    edit(tmp_path, file, old, new)
    with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match=message):
        smelt.compile(two_cosines)(x)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_what_an_edited_program_raises_comes_from_its_line(tmp_path, backend):
    x = torch.ones(3)
    file = edited_sines(tmp_path, x)
    edit(tmp_path, file, "    return (", "    1 / 0\n    return (")
    with smelt.dump(tmp_path, override=True), pytest.raises(ZeroDivisionError) as raised:
        smelt.compile(two_cosines, backend=backend)(x)
    place = raised.traceback[-1]
    assert place.path.name == file and str(place.statement).strip() == "1 / 0"


def indexed(x, i, seen):
    seen.append(1)
    try:
        return x[i] * 2
    except IndexError:
        return x


@pytest.mark.parametrize("line, raised", [("pass", None), ("1 / 0", ZeroDivisionError)])
def test_handlers_of_the_program_are_asked_where_it_raises_itself(tmp_path, line, raised):
    """Stores are those of eager; of what only the edited program raises, nobody is asked."""

    def stores(x, i, seen):
        seen.append(1)
        return x[i] * 2

    x, good, bad = torch.randn(3), torch.tensor([1]), torch.tensor([5])
    for f in (indexed, stores):
        dumped(tmp_path, f, x, good, [])
        name = f"{f.__name__}.0.torch.py"
        edit(tmp_path, name, "    return (", f"    {line}\n    return (")
        edit(tmp_path, name, "mul(2)", "mul(3)")
        compiled = smelt.compile(f)
        with smelt.dump(tmp_path, override=True):
            seen = []
            if raised is not None and f is stores:
                with pytest.raises(raised):
                    compiled(x, good, seen)
                continue
            if raised is None:
                torch.testing.assert_close(compiled(x, good, seen), x[good] * 3)
            if f is stores:
                with pytest.raises(IndexError):
                    compiled(x, bad, seen)
            else:
                assert compiled(x, bad, seen) is x
            assert len(seen) == 2 - (raised is not None)


def test_what_the_program_assumes_is_checked_by_an_edited_one(tmp_path):
    def f(x):
        if not (x > 0).all():
            raise ValueError("negative")
        return x * 2

    x = torch.ones(3)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.torch.py", "mul(2)", "mul(3)")
    compiled = smelt.compile(f)
    with smelt.dump(tmp_path, override=True):
        assert compiled(x).tolist() == [3, 3, 3]
        with pytest.raises(ValueError, match="negative"):
            compiled(-x)


def test_sizes_that_data_decide_are_refused(tmp_path):
    def f(x):
        return x[x > 0] * 2

    x = torch.randn(8)
    dumped(tmp_path, f, x)
    edit(tmp_path, "f.0.torch.py", "mul(2)", "mul(3)")
    with smelt.dump(tmp_path, override=True), pytest.raises(ArtifactError, match="unbacked sizes"):
        smelt.compile(f)(x)


# ---------------------------------------------------------------------------------------------------- edited frames

WEIGHT = torch.full((3,), 4.0)


def pair(x, y):
    return {"sum": torch.cos(x) + WEIGHT, "given": [y, x]}


def frame_file(folder, function, *inputs):
    """The file of the frame that `function` is compiled to, to be edited."""
    dumped(folder, function, *inputs)
    return f"{function.__name__}.0.frame.py"


def test_an_edited_frame_runs_in_place_of_smelts_own(tmp_path):
    """With imports and functions of its own, and the guards and the graph of the other one."""
    x, y = torch.randn(3), torch.randn(3)
    name = frame_file(tmp_path, pair, x, y)
    edit(
        tmp_path,
        name,
        "def compiled_pair(",
        "import math\n\ndef more(t):\n    return t + math.pi\n\n\ndef compiled_pair(",
    )
    edit(tmp_path, name, "    return {'sum': t0", "    y = more(y)\n    return {'sum': t0")
    before = text(tmp_path, name)
    f = smelt.compile(pair)
    with smelt.dump(tmp_path, override=True):
        result = f(x, y)
    torch.testing.assert_close(result, pair(x, y + torch.pi))
    torch.testing.assert_close(f(y, x), pair(y, x + torch.pi))
    assert text(tmp_path, name) == before
    torch.testing.assert_close(f(x.double(), y.double()), pair(x.double(), y.double()))
    torch.testing.assert_close(smelt.compile(pair)(x, y), pair(x, y))


def test_a_frame_that_only_calls_the_graph_can_be_edited(tmp_path):
    """Without an edit its graph answers calls, and no frame runs."""
    x = torch.randn(3)
    name = frame_file(tmp_path, two_cosines, x)
    edit(tmp_path, name, "return t0", "return -t0")
    f = smelt.compile(two_cosines)
    with smelt.dump(tmp_path, override=True):
        f(x)
    torch.testing.assert_close(f(x), -two_cosines(x))


def test_an_edited_frame_is_stepped_through_in_its_file(tmp_path):
    x, y = torch.randn(3), torch.randn(3)
    name = frame_file(tmp_path, pair, x, y)
    edit(tmp_path, name, "    return {'sum'", "    here = 1\n    return {'sum'")
    f = smelt.compile(pair, options={"compile_under_tracers": True})
    with smelt.dump(tmp_path, override=True):
        f(x, y)
    lines = lines_run(tmp_path.resolve(), lambda: f(x, y))
    assert (
        lines[0].startswith("t0, = graph(") and "here = 1" in lines and lines[-1].startswith("return {'sum'")
    )


def test_what_an_edited_frame_raises_comes_from_its_line(tmp_path):
    x, y = torch.randn(3), torch.randn(3)
    name = frame_file(tmp_path, pair, x, y)
    edit(tmp_path, name, "    return {'sum'", "    1 / 0\n    return {'sum'")
    with smelt.dump(tmp_path, override=True), pytest.raises(ZeroDivisionError) as raised:
        smelt.compile(pair)(x, y)
    place = raised.traceback[-1]
    assert place.path.name == name and str(place.statement).strip() == "1 / 0"


def test_frames_before_and_behind_a_break_can_be_edited(tmp_path):
    inputs = {"x": torch.zeros(10), "y": torch.randn(10)}
    first = frame_file(tmp_path, forward, inputs)
    (rest,) = [p.name for p in tmp_path.glob("resume*.frame.py")]
    edit(tmp_path, first, "    t0, ", "    inputs_0['seen'] = True\n    t0, ")
    edit(tmp_path, rest, "return t0", "return t0 + 1")
    before = {p: p.read_bytes() for p in tmp_path.glob("*.frame.py")}
    f = smelt.compile(forward)
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(f(dict(inputs)), forward(inputs) + 1)
    f(inputs)
    assert inputs.pop("seen")
    assert {p: p.read_bytes() for p in tmp_path.glob("*.frame.py")} == before


def test_frames_of_training_and_of_any_sizes_can_be_edited(tmp_path):
    def f(x):
        return [torch.cos(x), x.shape[0]]

    x = torch.randn(4, requires_grad=True)
    with smelt.dump(tmp_path):
        smelt.compile(f, dynamic=True)(x)
    edit(tmp_path, "f.0.frame.py", "return [t0", "t0 = t0 * 2\n    return [t0")
    compiled = smelt.compile(f, dynamic=True)
    with smelt.dump(tmp_path, override=True):
        compiled(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, -2 * x.detach().sin())
    x = torch.randn(7)
    torch.testing.assert_close(compiled(x.requires_grad_())[0], 2 * x.cos())
    assert compiled(x)[1] == 7


UNFIT_FRAMES = {
    "syntax": ("return {", "return {{", r"pair.0.frame.py:\d+: "),
    "name": ("return {'sum': t0", "return {'sum': total", r"frame.py:\d+: total is defined neither in the file nor"),
    "graph left out": ("    t0, = graph(", "    graph(", r"frame.py:\d+: t0 is defined neither"),
    "takes": ("(x, y, inputs)", "(x, inputs)", r"takes \(x, inputs\), smelt's own \(x, y, inputs\): arguments must not"),
    "no function": ("def compiled_pair(", "def mine(", r"defines no function compiled_pair\(x, y, inputs\)"),
    "raises": ("def compiled_pair(", "1 / 0\ndef compiled_pair(", r"frame.py:\d+: running it failed: ZeroDivisionError"),
    "fingerprint": ("fingerprint is", "print was", "was written from another frame"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT_FRAMES)
def test_a_frame_that_does_not_fit_is_said_so_and_smelts_own_runs(tmp_path, caplog, name):
    old, new, message = UNFIT_FRAMES[name]
    x, y = torch.randn(3), torch.randn(3)
    file = frame_file(tmp_path, pair, x, y)
    edit(tmp_path, file, "    return {'sum'", "    y = x\n    return {'sum'")
    edit(tmp_path, file, old, new)
    before = text(tmp_path, file)
    with smelt.dump(tmp_path, override=True):
        torch.testing.assert_close(smelt.compile(pair)(x, y), pair(x, y))
    assert re.search(message, caplog.text) and "runs as smelt wrote it" in caplog.text
    assert text(tmp_path, file) == before


def test_a_frame_that_the_program_has_outgrown_is_said_so(tmp_path, caplog):
    def f(x):
        return [x.cos()] * count

    x, count = torch.ones(3), 1
    name = frame_file(tmp_path, f, x)
    edit(tmp_path, name, "return [t0]", "return [t0, t0]")
    count = 3
    with smelt.dump(tmp_path, override=True):
        assert len(smelt.compile(f)(x)) == 3
    assert "was written from another frame than the current one" in caplog.text
