"""What a trace of torch.profiler shows of compiled calls: graphs, kernels and calls of ATen, with the user's lines."""

import functools
import json
import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import smelt
from smelt import user_lines
from smelt.plan import profiler_names
from smelt.plan.steps import Launch, ParallelLaunch, Plan


def profiled(call):
    """The profiler, after a second call: the first compiles."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as made:
        call()
    return made


def shown(made):
    """The events of smelt's and those within them, in order: the name of each, behind those of what it is in, outer first,
    from the graph on."""
    paths = map(path_of, made.events())
    return [p[start:] for p in paths for start, name in enumerate(p) if name.startswith("smelt graph")]


def path_of(event):
    return (*path_of(event.cpu_parent), event.name) if event.cpu_parent is not None else (event.name,)


def at(fn, further=0):
    """The line of `fn` that is so many behind its first, as events name it."""
    return user_lines.location(fn.__code__.co_filename, fn.__code__.co_firstlineno + further)


def own(paths):
    """Events of smelt's, and of ATen those that it called."""
    return [p for p in paths if len(p) == 1 or p[-2].startswith("smelt")]


def test_a_graph_holds_its_kernels_and_its_calls_of_aten():
    def f(x):
        y = torch.sin(x) * 2
        return torch.linalg.inv(y)

    compiled, x = smelt.compile(f), torch.eye(4) + 1
    graph, kernel = f"smelt graph f ({at(f)})", f"smelt: sin_mul ({at(f, 1)})"
    inverse, check = (f"aten::{name}" for name in ("linalg_inv_ex", "_linalg_check_errors"))
    assert own(shown(profiled(lambda: compiled(x)))) == [
        (graph,),
        (graph, kernel),
        (graph, f"smelt: {inverse} ({at(f, 2)})"),
        (graph, f"smelt: {inverse} ({at(f, 2)})", inverse),
        (graph, f"smelt: {check} ({at(f, 2)})"),
        (graph, f"smelt: {check} ({at(f, 2)})", check),
    ]


def test_a_backward_is_told_apart_and_is_within_its_node():
    def f(x):
        return (torch.tanh(x) * 2).sum()

    compiled, x = smelt.compile(f), torch.randn(5, requires_grad=True)
    made = profiled(lambda: compiled(x).backward())
    forward, backward = (f"smelt graph f ({at(f)}) {part}" for part in ("forward", "backward"))
    paths = [path_of(event) for event in made.events()]
    assert (forward, f"smelt: tanh_mul_sum ({at(f, 1)})") in paths
    [kernel] = [p for p in paths if len(p) > 1 and p[-2] == backward]
    assert kernel[-1].startswith("smelt: ") and kernel[-1].endswith(f" ({at(f, 1)})")
    assert kernel[-3] == "SmeltBackward"


def test_each_graph_of_a_function_that_breaks_is_shown():
    def f(x):
        y = torch.sin(x)
        if y.sum() > 100:
            print("large")
            return y
        return torch.cos(y)

    compiled, x = smelt.compile(f), torch.randn(5)
    paths = own(shown(profiled(lambda: compiled(x))))
    rest = f"smelt graph resume_in_f_at_{f.__code__.co_firstlineno + 5} ({at(f)})"
    assert [p for p in paths if len(p) == 1] == [(f"smelt graph f ({at(f)})",), (rest,)]
    assert (rest, f"smelt: cos ({at(f, 5)})") in paths


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Callable:
    def __call__(self, x):
        return torch.sin(x)


@torch.no_grad()
def decorated(x):
    return torch.sin(x)


@pytest.mark.parametrize(
    ("called", "name", "function"),
    [
        (Model(), "Model", Model.forward),
        (Callable(), "Callable", Callable.__call__),
        (decorated, "decorated", decorated.__wrapped__),
        (functools.partial(decorated), "partial", None),
    ],
)
def test_a_graph_has_the_name_of_what_was_compiled(called, name, function):
    compiled, x = smelt.compile(called), torch.randn(5)
    graph = f"smelt graph {name}" + (f" ({at(function)})" if function else "")
    assert shown(profiled(lambda: compiled(x)))[0] == (graph,)


@pytest.mark.parametrize("gradients", [False, True])
def test_graphs_for_any_sizes_have_the_same_names(gradients):
    def f(x):
        return torch.sin(x).sum()

    compiled = smelt.compile(f, dynamic=True)
    part = " forward" if gradients else ""
    for n in (3, 7):
        x = torch.randn(n, requires_grad=gradients)
        graph = f"smelt graph f ({at(f)}){part}"
        found = shown(profiled(lambda x=x: compiled(x)))
        assert found == [(graph,), (graph, f"smelt: sin_sum ({at(f, 1)})")]


def test_parts_of_a_graph_whose_sizes_data_decide():
    def f(x):
        return torch.sin(x[x > 0]) + 1

    compiled, x = smelt.compile(f), torch.randn(50)
    found = shown(profiled(lambda: compiled(x)))
    assert (f"smelt graph f ({at(f)})", f"smelt: sin_add ({at(f, 1)})") in found


def test_launches_that_are_one_piece_of_work_are_one_event(two_threads):
    def f(*tensors):
        return [t.sin().cos().sin().cos() for t in tensors]

    compiled, tensors = smelt.compile(f), [torch.randn(n) for n in (16, 5000, 20001, 40000)]
    found = shown(profiled(lambda: compiled(*tensors)))
    (event,) = (p[-1] for p in found if len(p) == 2)
    assert event.endswith(f" and 3 more ({at(f, 1)})")


def test_averages_are_by_kernel_and_line():
    def f(x):
        return torch.sin(x).sum()

    compiled, x = smelt.compile(f), torch.randn(5)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as made:
        for _ in range(3):
            compiled(x)
    counts = {row.key: row.count for row in made.key_averages() if row.key.startswith("smelt")}
    assert counts == {f"smelt graph f ({at(f)})": 3, f"smelt: sin_sum ({at(f, 1)})": 3}


def test_the_names_are_in_the_trace_that_is_exported(tmp_path):
    def f(x):
        return torch.sin(x)

    compiled, x = smelt.compile(f), torch.randn(5)
    profiled(lambda: compiled(x)).export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kinds = {e["name"]: e["cat"] for e in events if e["name"].startswith("smelt")}
    assert kinds == {f"smelt graph f ({at(f)})": "user_annotation", f"smelt: sin ({at(f, 1)})": "cpu_op"}


def test_a_profiler_that_begins_and_ends_between_calls():
    """Whether somebody watches is found out at each call."""

    def f(x):
        return torch.sin(x)

    compiled, x = smelt.compile(f), torch.randn(5)
    for _ in range(2):
        assert len(shown(profiled(lambda: compiled(x)))) == 2
        compiled(x)


def test_another_thread_is_not_watched():
    def f(x):
        return torch.sin(x)

    compiled, x = smelt.compile(f), torch.randn(5)

    def call():
        thread = threading.Thread(target=compiled, args=(x,))
        thread.start()
        thread.join()

    assert shown(profiled(call)) == []


def test_an_error_ends_the_events():
    def f(x, i):
        return torch.sin(x)[i] + 1

    compiled, x = smelt.compile(f), torch.randn(5)
    compiled(x, torch.tensor([4]))
    with profile(activities=[ProfilerActivity.CPU]) as made:
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([7]))
        torch.cos(x)
    assert [path_of(e) for e in made.events() if e.name == "aten::cos"] == [("aten::cos",)]


def test_names_of_lines():
    def name(note):
        return profiler_names.of_launch(Launch("mul", (), 1, 1, note))

    assert name("") == "smelt: mul"
    assert name("/a b/c.py:12 in f") == "smelt: mul (c.py:12)"
    assert (
        name("/a/c.py:12 in f; /a/d in e.py:3 in <lambda>; /a/c.py:12 in f")
        == "smelt: mul (c.py:12, d in e.py:3)"
    )
    assert name(f"{user_lines.__file__}:3 in f") == name("<smelt resume>:3 in f") == "smelt: mul"
    assert name("constant that is returned") == "smelt: mul"
    one = Launch("mul", (), 1, 1, "/a/c.py:12 in f")
    assert profiler_names.parallel_launch_name(ParallelLaunch((one,), (1,), 1)) == "smelt: mul (c.py:12)"
    assert (
        profiler_names.parallel_launch_name(ParallelLaunch((one, one), (1, 1), 1))
        == "smelt: mul and 1 more (c.py:12)"
    )
    assert profiler_names.of_graph(Plan(0, (), 0, (), ())) == "smelt graph"
