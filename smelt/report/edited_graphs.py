"""Graphs from files: an edited program replaces a captured graph.

The `forward` of a torch-level program is compiled like any other function. Its calls run in its own file, where debuggers
stop if they run uncompiled: with the backend `eager`, or after a graph break.

For other graphs the `forward` runs on fakes, so it may call any torch function; the resulting operators are recorded as in
a captured program. The resulting graph takes the captured one's inputs, returns tensors of the same types and layouts, and
writes the same inputs.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from smelt.errors import ArtifactError, SmeltError
from smelt.graph.graph_printer import python_source, spec_text
from smelt.graph.ir import Graph, Line, Node, argument_nodes, free_name, map_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.tensor_specs import empty_like_spec
from smelt.graph.verify_graph import verify
from smelt.report.edited_sources import compiled, run, where_raised
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.traced import Traced


def graph_of(path: Path, captured: Graph, gradients: int | None = None, cse: bool = True) -> Graph:
    """The graph of the file's `forward`, to compile for `captured`.

    Args:
        gradients: the index of the first result that is a gradient: autograd accepts gradients with any strides, in
            memory of their own.
        cse: merge equal nodes.

    Raises ArtifactError if it cannot replace `captured`, with the file and the expectation.
    """
    forward = forward_of(path, captured)
    recorder, fakes, traced, are_tensors = _recorded(path, forward, captured, gradients, cse)
    made = _with_inputs(captured, recorder, fakes, traced, are_tensors)
    _check_outputs(path, made, captured, gradients)
    _check_aliases(path, made, captured, gradients)
    _check_writes(path, made, captured)
    try:
        verify(made, functional=True)
    except SmeltError as error:
        raise ArtifactError(f"{path}: {error}") from error
    return made


def forward_of(
    path: Path, captured: Graph, replace_object: Callable[[Any], Any] = lambda value: value
) -> FunctionType:
    """The file's function, which takes the inputs of `captured`. Objects of the program that no module names, which
    the file sets to None, are passed through `replace_object`.

    Raises ArtifactError if there is no such function.
    """
    scope: dict[str, Any] = {"__name__": f"edited.{path.stem}", "__file__": str(path)}
    run(path, compiled(path), scope)
    scope |= {k: replace_object(v) for k, v in python_source(captured).names.items() if scope.get(k) is None}
    forward = scope.get("forward")
    wanted = [p.name for p in captured.placeholders]
    if not inspect.isfunction(forward):
        raise ArtifactError(f"{path} defines no function forward({', '.join(wanted)})")
    actual = [
        p.name for p in inspect.signature(forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    if actual != wanted:
        raise ArtifactError(
            f"{path}:{forward.__code__.co_firstlineno}: forward takes ({', '.join(actual)}), the captured graph "
            f"({', '.join(wanted)}): inputs must not change, also unread ones"
        )
    return forward


def _recorded(
    path: Path, forward: Callable[..., Any], captured: Graph, gradients: int | None, cse: bool
) -> tuple[Trace, list[FakeTensor], Traced, list[bool]]:
    """The program recorded on fakes of its inputs, and which of its results are tensors."""

    def where() -> Line | None:
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_filename != str(path):
            frame = frame.f_back  # type: ignore[assignment]
        return None if frame is None else Line(str(path), frame.f_lineno, frame.f_code.co_name)

    expected = captured.output.args[0]
    with torch.no_grad():
        examples = [empty_like_spec(p.spec, p.spec.device) for p in captured.placeholders]
        recorder = Trace(where)
        recorder.inputs.on_unknown_tensor = recorder.fake
        try:
            with recorder:
                fakes = [recorder.fake(t, p.name) for t, p in zip(examples, captured.placeholders)]
                results = forward(*fakes)
                if not isinstance(results, (tuple, list)) or len(results) != len(expected):
                    what = (
                        f"{len(results)} results"
                        if isinstance(results, (tuple, list))
                        else type(results).__name__
                    )
                    raise ArtifactError(
                        f"{path}: forward returns {what}, expected is a tuple of {len(expected)}: {_types(captured)}"
                    )
                tensors = _unaliased(recorder, captured, fakes, results, gradients)
            are_tensors = [isinstance(r, torch.Tensor) for r in results]
            return recorder, fakes, recorder.finish(tensors, cse), are_tensors
        except ArtifactError:
            raise
        except Exception as error:
            line = where_raised(error, path)
            raise ArtifactError(f"{path}{line}: {type(error).__name__}: {error}") from error


def _unaliased(
    recorder: Trace,
    captured: Graph,
    inputs: Sequence[FakeTensor],
    results: Sequence[object],
    gradients: int | None,
) -> list[torch.Tensor]:
    """The tensors among `results`, in memory of their own if those of the captured graph are: readers rely on that. A
    gradient may have its own memory, or that of the captured one."""
    owners: dict[object, str | int] = {
        fake.storage_key: p.name for fake, p in zip(inputs, captured.placeholders, strict=True)
    }
    made: list[torch.Tensor] = []
    for i, (result, alias) in enumerate(zip(results, _aliases(captured), strict=True)):
        if isinstance(result, torch.Tensor):
            fake = recorder.fake(result)
            owner = owners.get(fake.storage_key)
            if owner is not None and (alias is None or (_is_gradient(i, gradients) and owner != alias)):
                fake = recorder.fake(torch.ops.aten.clone.default(fake))
            owners.setdefault(fake.storage_key, i)
            made.append(fake)
    return made


def _is_gradient(result: int, gradients: int | None) -> bool:
    return gradients is not None and result >= gradients


def _root(node: Node) -> Node:
    """The base of a view; `node` itself if it is not one."""
    while True:
        maker = node.args[0] if node.target is operator.getitem else node
        if not isinstance(maker.target, OpOverload) or not effects(maker.target).view:
            return node
        node = argument_nodes(maker)[0]


def _aliases(graph: Graph) -> list[str | int | None]:
    """For each result, the input or earlier result that it aliases."""
    found: list[str | int | None] = []
    first: dict[Node, int] = {}
    for i, node in enumerate(graph.output.args[0]):
        if node is None:
            found.append(None)
            continue
        root = _root(node)
        found.append(root.name if root.op == "placeholder" else first.get(root))
        first.setdefault(root, i)
    return found


def _with_inputs(
    captured: Graph, recorder: Trace, fakes: Sequence[FakeTensor], traced: Traced, are_tensors: Sequence[bool]
) -> Graph:
    """The recorded graph with all inputs of the captured one; other tensors that it reads are constants."""
    graph = Graph("aten")
    graph.constants = dict(traced.aten_graph.constants)
    graph.nodes = [replace(p) for p in captured.placeholders]
    own = {id(fake): node for fake, node in zip(fakes, graph.nodes, strict=True)}
    used = {node.name for node in graph.nodes}
    copy_of: dict[Node, Node] = {}
    for node, fake in zip(traced.aten_graph.placeholders, traced.inputs, strict=True):
        if id(fake) in own:
            copy_of[node] = own[id(fake)]
            continue
        name, real = free_name("constant", used | graph.constants.keys()), recorder.real(fake)
        used.add(name)
        assert real is not None
        graph.constants[name] = real.detach()
        copy_of[node] = Node("get_attr", name, (), {}, name, node.spec)
        graph.nodes.append(copy_of[node])
    for node in traced.aten_graph.nodes[len(traced.inputs) :]:
        args, kwargs = (map_nodes(x, copy_of.__getitem__) for x in (node.args, node.kwargs))
        name = node.name if node.op == "output" else free_name(node.name, used)
        copy_of[node] = replace(node, args=args, kwargs=kwargs, name=name, source=None)
        graph.nodes.append(copy_of[node])
    tensors = iter(graph.output.args[0])
    returned = tuple(next(tensors) if is_tensor else None for is_tensor in are_tensors)
    graph.output.args = (returned,)
    graph.output.spec = tuple(None if n is None else n.spec for n in returned)
    return graph


def _types(graph: Graph) -> str:
    return ", ".join("None" if n is None else spec_text(n.spec) for n in graph.output.args[0])


def _layout(node: Node | None, is_gradient: bool) -> Any:
    if node is None:
        return None
    return node.spec.shape, node.spec.dtype, node.spec.device, () if is_gradient else node.spec.stride


def _check_outputs(path: Path, made: Graph, captured: Graph, gradients: int | None) -> None:
    for i, (got, want) in enumerate(zip(made.output.args[0], captured.output.args[0], strict=True)):
        is_gradient = _is_gradient(i, gradients)
        if _layout(got, is_gradient) != _layout(want, is_gradient):
            texts = ["None" if n is None else spec_text(n.spec) for n in (got, want)]
            raise ArtifactError(
                f"{path}: result {i} of forward is {texts[0]}, the captured graph gives {texts[1]}: the rest of the call "
                "was compiled for that"
            )


def _check_aliases(path: Path, made: Graph, captured: Graph, gradients: int | None) -> None:
    for i, (got, want) in enumerate(zip(_aliases(made), _aliases(captured), strict=True)):
        if got != want and not _is_gradient(i, gradients):
            of = f"input {want}" if isinstance(want, str) else f"result {want}"
            raise ArtifactError(
                f"{path}: result {i} of forward must be a view of {of}, as that of the captured graph is"
            )


def _written(graph: Graph) -> set[str]:
    written = (n.args[0] for n in graph if n.target is torch.ops.aten.copy_.default)
    return {n.name for n in written if isinstance(n, Node)}


def _check_writes(path: Path, made: Graph, captured: Graph) -> None:
    got, want = _written(made), _written(captured)
    if got != want:
        raise ArtifactError(
            f"{path}: forward writes {', '.join(sorted(got)) or 'no input'}, the captured graph "
            f"{', '.join(sorted(want)) or 'none'}: the call was guarded for that"
        )


# ------------------------------------------------------------------------------------------------- torch-level graphs


def program_of(path: Path, traced: Traced) -> FunctionType:
    """The file's `forward`, to call in place of the torch-level graph.

    Raises ArtifactError if it cannot be called, with the file, the line if known, and the expectation.
    """
    if traced.unbacked is not None:
        raise ArtifactError(
            f"{path} is edited, but the graph has unbacked sizes: edit the frame, or the program"
        )
    forward = forward_of(path, traced.torch_graph, _not_captured)
    forward.__code__ = forward.__code__.replace(co_qualname=path.stem)
    forward.__qualname__ = path.stem
    return forward


def _not_captured(value: Any) -> Any:
    """An object that the graph calls atomically (a checkpoint, a custom `autograd.Function`). A capture of the file
    breaks the graph there instead of tracing into it."""
    if not callable(value):
        return value

    def call(*args: Any) -> Any:
        return value(*args)

    call.__smelt_disable__ = True  # type: ignore[attr-defined]
    return call
