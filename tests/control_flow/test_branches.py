"""Branches on tensors: eager's results, effects and identities, in one graph where branches are captured.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.branching import DOWN, MIXED, UP, ZERO, branch
from tests.harness.catalogue import INLINED, program, since

BREAK = ["data-dependent-condition"]


# ---- what branches leave in variables


@branch()
def the_example_of_the_seeds(x):
    if x.mean() > 0.5:
        x = x / 1.1
    return x * 2


@branch()
def the_argument_itself_is_returned(x):
    if x.sum() > 0:
        x = x / 2
    return x


@branch()
def both_branches_assign(x):
    if x.sum() > 0:
        y = x.sin()
    else:
        y = x.cos()
    return y + 1


@branch()
def an_early_return(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


@branch()
def an_early_return_before_products(x):
    if x.sum() > 0:
        return x
    y = (x @ x.T).softmax(-1)
    return y @ x


@branch()
def a_conditional_expression(x):
    return (x.sin() if x.sum() > 0 else x.cos()) + 1


@branch()
def nested_and_elif(x):
    if x.sum() > 3:
        if x.max() > 2:
            y = x * 2
        else:
            y = x * 3
    elif x.min() < 0:
        y = x - 1
    else:
        y = x + 7
    return y.sum(0)


@branch()
def conditions_with_and_or(x):
    if x.sum() > 0 and x.max() > 2 or x.min() < -2.5:
        return x * 2
    return x * 3


@branch()
def the_value_of_and(x):
    return (x.sum() > 0) and (x.max() > 2), x


@branch()
def a_negated_condition(x):
    if not (x > 0).all():
        x = x.abs()
    return x.sqrt()


@branch()
def a_number_as_condition(x):
    if x.sum():
        return x * 2
    return x + 9


@branch()
def ints(x):
    k = 2 if x.sum() > 0 else 3
    return x * k, k


@branch()
def an_int_in_text(x):
    k = 1 if x.sum() > 0 else 2
    return f"k={k}", x * k


@branch(2, later=1, breaks=BREAK)
def an_int_as_size(x):
    k = 1 if x.sum() > 0 else 2
    return torch.zeros(k) + x.sum()


@branch()
def bools(x):
    flag = False
    if x.sum() > 0:
        flag = True
    y = x * 2
    if flag:
        y = y + 1
    return y, flag


@branch()
def a_float_is_told_apart_in_the_rest_of_the_function(x):
    scale = 0.5 if x.sum() > 0 else 2.0
    return x * scale


@branch()
def none_is_told_apart_in_the_rest_of_the_function(x):
    y = None
    if x.sum() > 0:
        y = x * 2
    return x if y is None else y


@branch(2, later=1, breaks=BREAK)
def different_texts_are_returned(x):
    mode = "up" if x.sum() > 0 else "down"
    return x * 2, mode


@branch()
def tuples_with_equal_parts(x):
    if x.sum() > 0:
        a, b = x + 1, (x * 2, "k")
    else:
        a, b = x - 1, (x * 3, "k")
    return a, b


@branch()
def two_variables_with_one_tensor(x):
    if x.sum() > 0:
        a = b = x * 2
    else:
        a = b = x * 3
    b += 1
    return a, b, a is b


@branch()
def views_of_one_layout(x):
    return x[1:] if x.sum() > 0 else x[:-1]


@branch()
def other_sizes(x):
    if x.sum() > 0:
        y = x[:2] * 2
    else:
        y = x
    return y.sum()


@branch()
def other_sizes_twice(x):
    if x.sum() > 0:
        x = x[:2]
    y = x * 2
    if y.max() > 1:
        y = torch.cat([y, y + 1])
    return y.mean(0) + 1


@branch()
def other_layouts(x):
    if x.sum() > 0:
        y = (x * 2).reshape(6, 4).t()
    else:
        y = x * 3
    return (y + 1).sum(0)


@branch()
def other_dtypes(x):
    y = x.long() if x.sum() > 0 else x * 2
    return (y + 1).double()


@branch(2, later=1, breaks=BREAK)
def other_sizes_are_returned(x):
    if x.sum() > 0:
        x = x[:2] * 2
    return x + 1


@pytest.mark.parametrize(
    "values, why",
    [
        (("x[:2] * 2", "x + 1"), "tensors of different sizes, [2, 6] and [4, 6] in `y`"),
        (("x.long()", "x + 1"), "tensors of different dtypes, torch.int64 and torch.float32 in `y`"),
        (("'a'", "'b'"), "they leave different values of type str in `y`"),
        (("[x, 1]", "[x]"), "they leave different values of type list in `y`"),
        (("None", "x * 1"), "one leaves a value of type NoneType, the other of type Tensor in `y`"),
    ],
)
def test_the_reason_names_the_variable(values: tuple[str, str], why: str) -> None:
    namespace: dict[str, Any] = {}
    branches = "if x.sum() > 0:\n        y = {}\n    else:\n        y = {}".format(*values)
    source = f"def fn(x):\n    {branches}\n    return y, x * 2"
    exec(source, namespace)
    compiled = smelt.compile(namespace["fn"])
    compiled(UP)
    [reason] = inspect.reasons(compiled)
    assert why in reason.detail


@branch()
def a_variable_that_one_branch_deletes(x):
    y = x * 2
    if x.sum() > 0:
        del y
        z = x
    else:
        z = y
    return z + 1


@branch()
def a_variable_that_one_branch_assigns(x):
    if x.sum() > 0:
        y = x * 2
    try:
        return y
    except UnboundLocalError:
        return x


@branch(breaks=["data-dependent-value"])
def identity_is_asked_for(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    return y * 1, y is x


@branch()
def a_result_of_nested_branches_that_may_be_the_argument(x):
    if torch.isinf(x).any() or torch.isnan(x).any() or x.sum() > 0:
        x = x.clamp(-1, 1)
    return x


@branch()
def one_of_two_arguments_of_a_call(x):
    y = x * 2

    def choose(a, b):
        if (a + b).sum() > 0:
            return a
        return b

    return choose(x, y), y


# ---- containers and objects of the program


@branch()
def appended_to_a_list(x):
    out = [x]
    if x.sum() > 0:
        out.append(x + 1)
    else:
        out.append(x - 1)
    return out


@branch()
def stored_in_a_dictionary(x):
    table = {"a": x}
    if x.sum() > 0:
        table["b"] = x + 1
    else:
        table["b"] = x - 1
    return table


@branch(2, breaks=BREAK)
def a_key_that_one_branch_adds(x):
    table = {"a": x}
    if x.sum() > 0:
        table["b"] = x + 1
    return table


@branch()
def one_list_in_two_variables(x):
    if x.sum() > 0:
        a = b = [x * 2]
    else:
        a = b = [x * 3]
    b.append(x)
    return a, b, a is b


@branch(2, later=1, breaks=BREAK)
def lists_shared_in_one_branch(x):
    if x.sum() > 0:
        a = b = [x * 2]
    else:
        a, b = [x * 3], [x * 3]
    b.append(x)
    return a, b, a is b


class Box:
    def __init__(self, value):
        self.value = value
        self.count = 0


@branch()
def attributes_of_a_new_object(x):
    box = Box(x)
    if x.sum() > 0:
        box.value = box.value * 2
        box.count += 1
    else:
        box.count += 2
    return box.value + 1, box.count


@branch(2, breaks=BREAK)
def an_attribute_that_one_branch_adds(x):
    box = Box(x)
    if x.sum() > 0:
        box.extra = x * 2
    return box


@branch()
def a_cell_of_a_closure(x):
    total = x * 0

    def add(t):
        nonlocal total
        total = total + t

    for i in range(3):
        if x.sum() > i:
            add(x * i)
    return total


@branch(2, later=1, breaks=BREAK)
def a_set_changes(x):
    seen = {1}
    if x.sum() > 0:
        seen.add(2)
    return x * len(seen), seen


# ---- objects outside


def outside(graphs: int = 1, **numbers: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A row for a function of a tensor and a module, whose state is compared."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., None]:
        def factory() -> Any:
            module = Stateful()
            inputs = (UP, DOWN, MIXED, DOWN, UP)
            return functools.partial(fn, module), [(x.clone(),) for x in inputs], lambda: vars(module)

        factory.__name__ = fn.__name__
        factory.__module__ = fn.__module__
        return program(graphs, **numbers)(factory)

    return decorate


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 6))
        self.steps = 0
        self.last = None
        self.held = [0, torch.zeros(4, 6)]
        self.table = {"a": torch.ones(4, 6)}


@outside()
def a_buffer_is_replaced(module, x):
    if x.sum() > 0:
        module.total = module.total + x
    return x * module.total


@outside()
def an_attribute_is_set_in_both(module, x):
    if x.sum() > 0:
        module.last = x * 2
    else:
        module.last = x * 3
    return module.last + 1


@outside()
def an_attribute_is_the_argument_in_one(module, x):
    if x.sum() > 0:
        module.last = x
    else:
        module.last = x * 3
    return x + 1


@outside(later=5, breaks=BREAK)
def a_counter(module, x):
    if x.sum() > 0:
        module.steps += 1
    return x * 2, module.steps


@outside()
def an_item_of_a_list(module, x):
    if x.sum() > 0:
        module.held[1] = x + 1
    return x * 2 + module.held[1]


@outside()
def an_entry_of_a_dictionary(module, x):
    if x.sum() > 0:
        module.table["a"] = module.table["a"] + x
    return x * module.table["a"]


@outside(2, later=1, breaks=BREAK)
def a_list_outside_grows_in_one(module, x):
    if x.sum() > 0:
        module.held.append(x)
    return x * 2


@branch(2, later=1, breaks=BREAK)
def prints(x):
    if x.sum() > 0:
        print("up")
    return x * 2


@branch(2, later=1, breaks=BREAK)
def warns(x):
    if x.sum() > 0:
        warnings.warn("up", stacklevel=1)
    return x * 2


@branch()
def random_numbers(x):
    if x.sum() > 0:
        x = x + torch.rand(6)
    return x * 2 + torch.rand(6)


@branch(2, later=1, breaks=BREAK)
def a_seed(x):
    if x.sum() > 0:
        torch.manual_seed(5)
    return torch.rand(6) + x


@functools.lru_cache
def cached(n):
    return torch.ones(6) * n


@branch(2, later=4, breaks=[*BREAK, "unsupported-call"])
def a_cached_function(x):
    cached.cache_clear()
    if x.sum() > 0:
        x = x + cached(3)
    return x + cached(3)


@branch(0, eager=BREAK)
def a_weak_reference_to_a_tensor(x):
    y = x * 2
    reference = weakref.ref(y)
    if x.sum() > 0:
        y = x * 3
    return y, reference() is None


# ---- writes in place


@branch()
def a_new_tensor_is_written(x):
    y = x * 1
    if x.sum() > 0:
        y.add_(10)
    return y


@branch()
def a_view_is_written(x):
    y = x * 1
    view = y[:2]
    if x.sum() > 0:
        view.add_(10)
    return y, view


@branch()
def the_base_of_a_view_is_written(x):
    y = x * 1
    view = y[:2]
    if x.sum() > 0:
        y.add_(10)
    return y, view


@branch()
def elements_are_written(x):
    y = x.clone()
    if (y < 0).any():
        y[y < 0] = 0
        y[0] = 7
    return y


@branch(2, later=1, breaks=BREAK)
def the_argument_is_written_without_gradients(x):
    with torch.no_grad():
        if x.sum() > 0:
            x.mul_(2)
        else:
            x[0] = 100
    return x + 1


@branch(2, later=1, breaks=BREAK)
def the_argument_is_written(x):
    if x.sum() > 0:
        x.add_(1)
    return x * 2


@branch(2, later=1, breaks=BREAK)
def the_result_is_written_after_the_branches(x):
    y = x * 1
    if y.sum() > 0:
        z = y
    else:
        z = y * 2
    z.add_(1)
    return y, z


# ---- loops


@branch()
def a_branch_in_a_loop(x):
    for i in range(4):
        if x.sum() > i * 10:
            x = x - 0.5
        else:
            x = x + 0.25
    return x


@branch()
def a_loop_that_breaks(x):
    for _ in range(5):
        x = x * 1.5
        if x.sum() > 90:
            break
    return x


@branch()
def the_counter_of_a_loop_that_breaks(x):
    for i in range(4):  # noqa: B007
        x = x * 1.5
        if x.sum() > 90:
            break
    return x, i


@branch()
def continue_in_a_loop(x):
    for _ in range(3):
        x = x * 1.5
        if x.sum() > 90:
            continue
        x = x + 1
    return x


@branch()
def the_else_of_a_loop(x):
    for i in range(3):
        if x[i].sum() < 0:
            break
    else:
        return x * 2
    return x * 3 + i


@branch()
def iterators_in_a_loop_that_breaks(x):
    total = x.sum() * 0
    for row, weight in zip(x, [1, 2, 3, 4]):
        if row.sum() < 0:
            break
        total = total + row.sum() * weight
    return total


@branch()
def a_loop_over_a_dictionary(x):
    total = x.sum() * 0
    for _, value in {"a": 1, "b": 20}.items():
        if x.sum() > value:
            total = total + value
    return total


@branch()
def nested_iterators_in_a_loop_that_breaks(x):
    total = x.sum() * 0
    for i, (row, (_, weight)) in enumerate(zip(x, {"a": 1, "b": 2, "c": 3, "d": 4}.items())):
        if row.sum() < i:
            break
        total = total + row.sum() * weight
    return total


@branch(2, later=1, breaks=BREAK)
def an_iterator_advances(x):
    values = iter([1, 2, 3])
    if x.sum() > 0:
        a = next(values)
    else:
        a = next(values) + next(values)
    return x * a, next(values)


@branch()
def a_while_loop(x):
    while x.sum() < 100:
        x = x.abs() * 1.5 + 1
    return x


@branch(unlike=since("3.12", INLINED, 1))
def a_comprehension(x):
    return [row * 2 if row.sum() > 0 else row * 3 for row in x]


@branch()
def recursion(x):
    def grow(x, depth):
        if depth > 3 or x.sum() > 200:
            return x
        return grow(x.abs() * 2, depth + 1)

    return grow(x, 0)


# ---- calls, exceptions, contexts


@branch()
def a_function_with_a_branch_is_called_twice(x):
    def g(y):
        if y.sum() > 0:
            return y.exp()
        return y.tanh()

    return g(x) + g(-x)


@branch()
def a_branch_that_only_raises(x):
    if x.isnan().any():
        raise ValueError("nan")
    return x * 2


@branch()
def an_assertion_in_a_branch(x):
    if x.sum() > 0:
        assert x.min() > -9, "low"
        return x * 2
    return x * 3


@branch()
def an_assertion_in_a_branch_that_fails(x):
    if x.sum() > 0:
        assert x.min() > 0, "low"
        y = x @ x.T
    else:
        y = x @ x.T * 3
    return y


@branch()
def an_exception_that_is_handled(x):
    try:
        if x.sum() > 0:
            y = x * 2
        else:
            raise ValueError("down")
    except ValueError:
        y = x - 5
    return y


@branch()
def gradients_are_off(x):
    with torch.no_grad():
        if x.sum() > 0:
            x = x * 2
        else:
            x = x * 4
    return x


@branch()
def autocast_in_a_branch(x):
    if x.sum() > 0:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
        y = y.float()
    else:
        y = x @ x.T
    return y


@branch()
def an_integer_division_that_only_one_branch_makes(x):
    divisor = (x.sum() > 0).long()
    if divisor != 0:
        y = x.long() // divisor
    else:
        y = x.long()
    return y


@branch()
def a_router(x):
    layers = [torch.sin, torch.cos, torch.tanh]
    which = x.sum().clamp(0, 2).long()
    if which == 0:
        return layers[0](x)
    if which == 1:
        return layers[1](x)
    return layers[2](x)


@branch()
def overflow_is_clamped(x):
    for scale in (1.0, 1e30, 1e30):
        x = x * scale
        if torch.isinf(x).any() or torch.isnan(x).any():
            x = torch.clamp(x, min=-1e4, max=1e4)
    return x


# ---- gradients


@branch(grad=True)
def a_cheap_branch_with_gradients(x):
    y = x * 3
    if y.sum() > 0:
        y = y / 2
    return y


@branch(grad=True)
def a_leaf_or_a_result(x):
    if x.sum() > 0:
        x = x / 2
    return x


@branch(grad=True)
def products_with_gradients(x):
    if x.sum() > 0:
        y = (x @ x.T).softmax(0) @ x
    else:
        y = x @ x.T @ x.sin()
    return y * 2


@branch(grad=True)
def the_gradient_of_the_other_branch_is_nan(x):
    if x.min() > 0:
        y = x.sqrt() / x
    else:
        y = x * 2
    return y


@branch(2, later=1, grad=True, breaks=BREAK)
def requires_grad_is_asked_for(x):
    y, constant = x * 2, torch.ones(4, 6)
    z = y if x.sum() > 0 else constant
    return y * z if z.requires_grad else y - z


@branch(grad=True)
def branches_of_many_products(x):
    if x.sum() > 0:
        for _ in range(5):
            x = (x @ x.T / 9).softmax(-1) @ x
    else:
        for _ in range(5):
            x = torch.tanh(x @ x.T / 99) @ x
    return x


@branch(grad=True)
def cheap_branches_under_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ x.T
        if x.sum() > 0:
            y = h * 2
        else:
            y = h + h.exp()
        return y.softmax(-1)


@branch(grad=True)
def a_norm_without_gradients(x):
    if x.sum() > 0:
        with torch.no_grad():
            scale = x.abs().max()
    else:
        scale = torch.ones(())
    return x / scale


@branch(2, grad=True, breaks=BREAK)
def gradients_of_a_tensor_that_one_branch_reads(x):
    y, z = x * 2, x.sin()
    if x.sum() > 0:
        y = y * z
    return y


@branch(2, later=1, grad=True, breaks=BREAK)
def a_detached_result(x):
    y = x * 2
    if y.sum() > 0:
        y = y.detach() * 3
    return y * 3 + x


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


@branch(2, later=1, grad=True, breaks=BREAK)
def a_custom_function(x):
    if x.sum() > 0:
        y = Double.apply(x)
    else:
        y = x * 3
    return y


@branch(2, later=1, grad=True, breaks=BREAK)
def a_hook(x):
    y = x * 2
    if y.sum() > 0:
        y.register_hook(lambda g: g * 10)
    return y * 3


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        if x.sum() > 0:
            return self.large(x)
        return self.small(x)


def routed() -> Any:
    torch.manual_seed(0)
    module = Routed()
    # A parameter that the executed branch does not read has no gradient: None, no zeros.
    return module, [(x.clone(),) for x in (UP, DOWN, UP, DOWN)], lambda: [p.grad for p in module.parameters()]


@program(1)
def layers_of_one_branch_get_gradients():
    return routed()


@program(1, grad=False)
def layers_without_gradients():
    return routed()


# ---- what only one branch may show


@program(1)
def inputs_that_nothing_else_reads():
    a, b = (UP.clone().requires_grad_() for _ in range(2))

    def fn(x):
        return x.T @ (a if x.sum() > 0 else b * 1)

    return fn, [(x.clone(),) for x in (UP, DOWN, UP)], lambda: (a.grad, b.grad)


@branch(2, later=1, breaks=BREAK)
def one_of_two_lists_that_exist(x):
    up, down = [x], [x]
    (up if x.sum() > 0 else down).append(x + 1)
    return up, down


@branch(2, later=1, breaks=BREAK)
def a_return_within_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if x.sum() > 0:
            return x @ x.T
    return x @ x.T + 1


@program(2, later=1, breaks=BREAK)
def results_with_gradients_of_their_own():
    w1, w2 = (UP.clone().requires_grad_() for _ in range(2))

    def fn(x):
        if x.sum() > 0:
            h, aux = x.T @ w1, (x.T @ w2).sum()
        else:
            h, aux = x.T @ w1 * 2, (x.T @ w2).sum() * 3
        return h + aux.detach()

    return fn, [(x.clone(),) for x in (UP, DOWN, UP)], lambda: (w1.grad, w2.grad)


@branch()
def the_condition_is_written_later(x):
    condition = x.sum() > 0
    y = x * 2
    if condition:
        y = x
    condition.zero_()
    return y, condition


@branch(2, later=1, breaks=["data-dependent-condition", "unsupported-effect"])
def sizes_change_in_place(x):
    y = x * 1
    if x.sum() > 0:
        y.t_()
    return y.reshape(4, 6) + 1, y.shape


@branch(2, later=1, breaks=BREAK)
def a_tensor_in_a_set(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    return y * 1, y in {x}


@branch(2, later=1, breaks=BREAK)
def an_attribute_of_a_result(x):
    y = x * 1
    if x.sum() > 0:
        z = y
    else:
        z = y * 2
    z.tag = "result"
    return getattr(y, "tag", "none"), z + 1


class Slots:
    __slots__ = ("__dict__", "value")


@branch(2, later=1, breaks=BREAK)
def a_slot_of_a_new_object(x):
    held = Slots()
    held.value = 1
    if x.sum() > 0:
        held.value = 2
    return x * held.value


@branch(
    2,
    later=1,
    breaks=["data-dependent-condition", "unsupported-object", "unsupported-object", "unsupported-object"],
)
def a_bytearray(x):
    held = bytearray(b"a")
    if x.sum() > 0:
        held += b"b"
    return x * len(held)


@branch()
def zeros_of_two_signs(x):
    zero = 0.0 if x.sum() > 0 else -0.0
    return x * 2, zero


@branch(3, later=2, breaks=BREAK * 3)
def a_function_that_is_captured_first_and_refused_later(x):
    out = []

    def g(y, log):
        if y.sum() > 0:
            if log:
                out.append(1)
            return y + 1
        return y - 1

    return g(x, False) + g(x * 2, True), len(out)


@branch(2, later=1, breaks=BREAK)
def a_part_of_a_new_tensor(x):
    y = torch.ones(10)[2:4] if x.sum() > 0 else torch.zeros(2)
    return y, y.storage_offset()


@branch(1, breaks=BREAK)
def one_of_two_tuples(x):
    first = (x, 1)
    second = first if x.sum() > 0 else (x, 1)
    return first, second, second is first


@branch(2, later=1, breaks=BREAK)
def a_dictionary_of_attributes_is_replaced(x):
    box = Box(1)
    if x.sum() > 0:
        box.__dict__ = {"value": 5}
    return x * box.value


@program(1)
def tensors_and_numbers_of_a_closure():
    weight, shift = UP / 3, 2

    def fn(x):
        if x.sum() > 0:
            y = x * weight
        else:
            y = x - weight * shift
        return y

    return fn, [(x,) for x in (UP, DOWN, MIXED, ZERO, UP)]


@program(2, later=2, breaks=BREAK)
def a_branch_that_stores_into_a_cell_of_the_closure():
    count = 0

    def fn(x):
        nonlocal count
        if x.sum() > 0:
            count += 1
            x = x * 2
        return x + 1

    return fn, [(x,) for x in (UP, DOWN, MIXED, ZERO, UP)]


# ---- generators and exceptions


@branch()
def within_a_generator(x):
    def smaller():
        y = x
        for _ in range(3):
            if y.sum() > 0:
                y = y - 1
            yield y

    return sum(smaller())


@branch()
def within_a_generator_expression(x):
    return torch.stack(list(r if r.sum() > 0 else -r for r in x))  # noqa: C400


@branch()
def an_exception_that_is_handled_in_one_branch(x):
    try:
        if x.sum() > 0:
            raise ValueError("positive")
        y = x * 2
    except ValueError:
        y = x - 1
    return y


@branch(2, later=1, breaks=BREAK)
def an_exception_that_is_handled_in_a_callee(x):
    def checked(y):
        if y.mean() > 1:
            raise ArithmeticError(2)
        return y

    try:
        return checked(x) * 2
    except ArithmeticError as error:
        return x - error.args[0]


@branch(breaks=BREAK)
def an_exception_that_a_branch_keeps(x):
    kept = None
    try:
        if x.sum() > 0:
            raise ValueError("positive")
    except ValueError as error:
        kept = error
    return x, str(kept)
