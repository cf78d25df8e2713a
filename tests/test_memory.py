"""What the caches keep alive: nothing of a model that the user has let go of, and nothing at all after `reset`."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import runtime


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()


def parts(model: nn.Module) -> list[weakref.ref[Any]]:
    return [weakref.ref(o) for o in (model, *model.modules(), *model.parameters(), *model.buffers())]


def alive(references: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [o for o in (r() for r in references) if o is not None]


def plans() -> int:
    """How many plans are loaded."""
    gc.collect()
    return len(runtime._loaded)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_a_compiled_model_goes_with_its_last_reference(backend: str, grad: bool) -> None:
    model = network()
    references = parts(model)
    compiled = smelt.compile(model, backend=backend)
    with torch.set_grad_enabled(grad):
        for rows in (3, 5):
            compiled(torch.randn(rows, 4))
    del compiled, model
    assert alive(references) == []


def apply(model: Any, x: Any) -> Any:
    return model(x) * 2


def broken(model: Any, x: Any) -> Any:
    y = model(x)
    if y.sum() > 0:
        print(end="")
        y = y + model(x * 2)
    return y


@pytest.mark.parametrize("function", [apply, broken])
def test_a_model_that_was_an_argument_goes_while_the_compiled_function_stays(function: Any) -> None:
    compiled = smelt.compile(function)
    model = network()
    references = parts(model)
    with torch.no_grad():
        for x in (torch.ones(3, 4), -torch.ones(3, 4)):
            torch.testing.assert_close(compiled(model, x), function(model, x))
    del model
    assert alive(references) == []
    model = network()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, x), function(model, x))


def test_arguments_and_results_are_not_kept() -> None:
    compiled = smelt.compile(lambda x: (x * 2).relu())
    x = torch.randn(100, 100)
    y = compiled(x)
    references = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert alive(references) == []


def test_reset_frees_everything() -> None:
    smelt.reset()
    before = plans()
    model = network()
    compiled = [smelt.compile(model), smelt.compile(lambda x: broken(model, x))]
    with torch.no_grad():
        for c in compiled:
            c(torch.randn(3, 4))
    assert plans() > before
    smelt.reset()
    assert plans() == before
    with torch.no_grad():
        torch.testing.assert_close(compiled[0](torch.ones(3, 4)), model(torch.ones(3, 4)))


def _closes_a_generator(x: Any) -> Any:
    def values() -> Any:
        try:
            yield x
        finally:
            torch.is_grad_enabled()

    generator = values()
    first = next(generator)
    generator.close()
    return first * 2


def _catches_what_it_throws(x: Any) -> Any:
    def values() -> Any:
        yield x

    generator = values()
    next(generator)
    try:
        generator.throw(ValueError("thrown"))
    except ValueError:
        return x + 1


def _reads_a_value(x: Any) -> Any:
    return x + 1 if x.sum() > 3 else x


def _looks_up_what_is_not_there(x: Any) -> Any:
    try:
        return x * {}[1]
    except KeyError:
        return x + getattr(x, "missing", 1)


@pytest.mark.parametrize(
    "function", [_closes_a_generator, _catches_what_it_throws, _reads_a_value, _looks_up_what_is_not_there]
)
def test_arguments_end_without_a_garbage_collection(function: Any) -> None:
    smelt.compile(function)(torch.ones(4))  # what the first capture imports may leave cycles
    gc.disable()
    try:
        x = torch.ones(4)
        seen = weakref.ref(x)
        smelt.compile(function)(x)
        del x
        assert seen() is None
    finally:
        gc.enable()


def test_gradients_end_after_a_compiled_optimizer_s_step() -> None:
    gc.disable()
    try:
        for _ in range(2):
            layer = nn.Linear(4, 4)
            optimizer = torch.optim.Adadelta(layer.parameters())
            layer(torch.ones(4)).sum().backward()
            smelt.compile(lambda optimizer=optimizer: optimizer.step())()
            gradient = weakref.ref(layer.weight.grad)
            optimizer.zero_grad()
        assert gradient() is None
    finally:
        gc.enable()
