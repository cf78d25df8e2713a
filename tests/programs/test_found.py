"""What random programs found, reduced."""

from __future__ import annotations

import torch

import smelt
from tests.harness.catalogue import INLINED, program, tensor


@program(graphs=1, breaks=["graph-break-requested"])
def one_list_under_two_names_across_a_break():
    def fn(x):
        values = [x + 1, x]
        again = values
        smelt.graph_break()
        again.append(x)
        return values, again

    return fn, [(tensor(2),)] * 3


@program(graphs=2, breaks=[*["graph-break-requested"] * 3, "unsupported-object"], unlike={"3.12": INLINED})
def a_list_named_like_its_class_is_extended_after_a_break():
    def fn(x):
        return [v + 1 for v in (smelt.graph_break() or y for y in (x, x * 2))]

    return fn, [(tensor(2),)] * 3


@program(graphs=0)
def parameters_named_like_builtins():
    def fn(list, dict, slice, str):
        list.append(1)
        list.reverse()
        dict["a"] = str
        del list[0]
        made = [3]
        made.append(made)
        return made, dict, f"{slice}"

    return fn, [([5, 6], {}, torch.ones(2), "s") for _ in range(3)]


@program(
    graphs=2, breaks=["graph-break-requested", "unsupported-object"], eager=["unsupported-object"], grad=True
)
def a_view_that_autograd_has_given_up_on():
    def fn(x):
        x = x * 1
        for _ in x:
            x.clamp_(-9, 9)
            other = -(smelt.graph_break() or (x + 1))
        return x, other

    return fn, [(tensor(2, 3, requires_grad=True),)] * 3


@program(graphs=2, breaks=["graph-break-requested"], grad=True)
def text_of_a_tensor_whose_history_is_before_a_break():
    def fn(x):
        y = torch.ones_like(x) + x * 0
        smelt.graph_break()
        print(y)
        return y * 2

    return fn, [(tensor(2, 3, requires_grad=True),)] * 3


@program(graphs=0)
def builtins_that_write_are_called_by_native_code():
    seen = []

    def fn(n):
        list(map(print, [n, "two"]))
        list(map(seen.append, [n, 2]))
        return sorted([3, n], key=len([]).__add__)

    return fn, [(1,), (1,), (2,)], seen


@program(graphs=0, eager=["unsupported-effect"])
def the_context_of_an_operators_error():
    def fn(x, log):
        x = x * 1
        try:
            for row in x:
                x[:, 1] = 3
                x -= row
        except RuntimeError as e:
            log.append((str(e)[:20], e.__context__))
        return log

    return fn, [(tensor(2, 3, requires_grad=True), []) for _ in range(3)]


@program(graphs=1)
def copies_of_one_layout_are_two_tensors():
    def fn(x):
        return x.reshape(6), x.flatten(0, 1), -x.flatten(0, 1)

    return fn, [(tensor(2, 3).t(),)] * 3


@program(graphs=1, grad=True)
def a_gradient_of_zeros_reads_no_saved_value():
    def fn(x):
        y = x.clone()
        y[:] = 3
        y.clamp_(-9, 9)
        return y, -x

    return fn, [(torch.empty(0, 3, requires_grad=True),)] * 3


@program(graphs=1, grad=True)
def gradients_of_results_without_elements():
    """An input that is free to keep in two ways, neither of which is read for fewer gradients."""

    def fn(x):
        product = torch.addmm(torch.ones(x.shape[0]), x, x.t()).clamp(-9, 9)
        positive = x.relu()
        other = torch.addmm(torch.ones(product.size(1)), positive, positive.t()).clamp(-9, 9)
        written = torch.nn.functional.linear(x, positive).clamp(-9, 9).clone()
        written[:, : x.shape[0] // 2] = 3
        written.clamp_(-9, 9)
        return product, other.cumsum(0).clamp(-9, 9), written

    return fn, [(torch.empty(0, 17, requires_grad=True),)] * 3


def test_parts_without_elements_start_where_eagers_do():
    def fn(x):
        return x.unsqueeze(0).split([1, 0], 0)[1], x[x.shape[0] :].unsqueeze(1), x.unsqueeze(1)[:, 1:]

    for x in (torch.randn(2, 3), torch.randn(4, 6)[::2, ::2], torch.randn(6)[1:].view(5, 1).expand(5, 3)):
        for got, want in zip(smelt.compile(fn)(x), fn(x), strict=True):
            assert (got.storage_offset(), got.stride()) == (want.storage_offset(), want.stride())
