"""Programs that use features of `torch.nn` and `torch.library`: hooks, parametrizations, packed sequences, operators."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import rnn as rnn_utils
from torch.utils.hooks import RemovableHandle

import smelt
from tests.harness.catalogue import program, tensor
from tests.harness.subclasses import Logged, Marked, Plain


def frozen(module: nn.Module) -> nn.Module:
    """Without gradients; hooks are numbered from the same number in both worlds."""
    RemovableHandle.next_id = 1
    return module.requires_grad_(False)


# ------------------------------------------------------------------------------------------------------ hooks


@program(graphs=1, later=1)
def forward_hook_changes_the_output():
    layer = frozen(nn.Linear(4, 4))
    layer.register_forward_hook(lambda module, args, out: out * 2)
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def forward_pre_hook_changes_the_arguments():
    layer = frozen(nn.Linear(4, 4))
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def hooks_with_keyword_arguments():
    class Scale(nn.Module):
        def forward(self, x, *, by):
            return x * by

    layer = frozen(Scale())
    layer.register_forward_pre_hook(lambda m, a, k: (a, {"by": k["by"] + 1}), with_kwargs=True)
    layer.register_forward_hook(lambda m, a, k, out: out + k["by"], with_kwargs=True)

    def fn(x, by):
        return layer(x, by=by)

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 5)]


@program(graphs=1, later=1)
def hooks_record_what_they_see():
    net = frozen(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    seen = {}
    for name, child in net.named_children():
        child.register_forward_hook(functools.partial(lambda n, m, a, out: seen.__setitem__(n, out), name))
    return net, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)], seen


@program(graphs=1, later=1)
def hooks_append_to_a_list():
    layer = frozen(nn.Linear(4, 4))
    seen = []

    def remember(module, args, out):
        seen.append((tuple(out.shape), out.detach()))

    layer.register_forward_hook(remember)
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)], seen


@program(graphs=1, later=1)
def a_hook_is_added_between_calls():
    layer = frozen(nn.Linear(4, 4))

    def fn(x, change):
        return layer(x)

    def inputs():
        yield (tensor(3, 4), 0)
        yield (tensor(3, 4), 0)
        handle = layer.register_forward_hook(lambda m, a, out: out + 10)
        yield (tensor(3, 4), 0)
        handle.remove()
        yield (tensor(3, 4), 0)

    return fn, Lazily(inputs, 4)


@program(graphs=1, later=2)
def a_hook_is_replaced_between_calls():
    layer = frozen(nn.Linear(4, 4))
    handles = [layer.register_forward_hook(lambda m, a, out: out + 1)]

    def inputs():
        yield (tensor(3, 4),)
        handles.pop().remove()
        layer.register_forward_hook(lambda m, a, out: out + 2)
        yield (tensor(3, 4),)
        layer.register_forward_pre_hook(lambda m, a: (a[0] * 3,))
        yield (tensor(3, 4),)

    return layer, Lazily(inputs, 3)


@program(graphs=1, later=2)
def a_global_hook_comes_and_goes():
    layer = frozen(nn.Linear(4, 4))

    def fn(x):
        return layer(x)

    def inputs():
        yield (tensor(3, 4),)
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out + 10)
        pre = nn.modules.module.register_module_forward_pre_hook(lambda m, a: (a[0] * 2,))
        yield (tensor(3, 4),)
        handle.remove()
        yield (tensor(3, 4),)
        pre.remove()
        yield (tensor(3, 4),)

    return fn, Lazily(inputs, 4)


@program(graphs=0)
def an_always_called_hook_sees_a_failure():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    layer, seen = frozen(Fails()), []
    layer.register_forward_hook(lambda m, a, out: seen.append(out), always_call=True)

    def fn(x):
        try:
            return layer(x)
        except ValueError as e:
            return x, str(e)

    return fn, [(tensor(3),), (tensor(3),), (tensor(3),)], seen


@program(graphs=1, later=2)
def a_hook_is_registered_inside():
    layer = frozen(nn.Linear(4, 4))

    def fn(x):
        handle = layer.register_forward_hook(lambda m, a, out: out * 2)
        y = layer(x)
        handle.remove()
        return y + layer(x)

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(3, 4),)], layer


@program(graphs=1, later=1)
def a_hook_that_reads_its_own_state():
    class Recorder:
        def __init__(self):
            self.factor = 3.0

        def __call__(self, module, args, out):
            return out * self.factor

    layer, recorder = frozen(nn.Linear(4, 4)), Recorder()
    layer.register_forward_hook(recorder)
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)], recorder


class Lazily:
    """Argument tuples of a generator, made when they are needed: the world changes between calls."""

    def __init__(self, make, count):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __iter__(self):
        return self.make()


# -------------------------------------------------------------------------------------------- parametrizations


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

    def right_inverse(self, x):
        return x / 2


@program(graphs=1, later=1)
def a_parametrized_weight():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return frozen(layer), [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def a_chain_of_parametrizations():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    return frozen(layer), [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def cached_parametrizations():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    frozen(layer)

    def fn(x):
        with parametrize.cached():
            return layer(x) + layer(x + 1)

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def weight_norm():
    layer = frozen(parametrizations.weight_norm(nn.Linear(4, 4)))
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def old_weight_norm():
    layer = frozen(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def spectral_norm_in_eval():
    layer = frozen(parametrizations.spectral_norm(nn.Linear(4, 4))).eval()
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def spectral_norm_in_training_writes_its_buffers():
    layer = frozen(parametrizations.spectral_norm(nn.Linear(4, 4)))
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)], layer


@program(graphs=1, later=1)
def orthogonal_weight():
    layer = frozen(parametrizations.orthogonal(nn.Linear(4, 4)))
    return layer, [(tensor(3, 4),), (tensor(3, 4),), (tensor(2, 4),)]


@program(graphs=1, later=1)
def a_convolution_with_weight_norm_in_a_network():
    net = nn.Sequential(parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), nn.ReLU(), nn.Flatten())
    return frozen(net), [(tensor(2, 2, 8),), (tensor(2, 2, 8),), (tensor(1, 2, 8),)]


# ---------------------------------------------------------------------------------------------------- sequences


@program(graphs=1, later=1)
def lstm():
    net = frozen(nn.LSTM(4, 5, num_layers=2))
    return net, [(tensor(3, 2, 4),), (tensor(3, 2, 4),), (tensor(5, 2, 4),)]


@program(graphs=1)
def bidirectional_lstm_with_state():
    net = frozen(nn.LSTM(4, 5, bidirectional=True, batch_first=True))

    def fn(x, h, c):
        out, (h, c) = net(x, (h, c))
        return out, h, c

    return fn, [(tensor(2, 3, 4), tensor(2, 2, 5), tensor(2, 2, 5)) for _ in range(3)]


@program(graphs=1)
def gru_and_projection():
    net, head = frozen(nn.GRU(4, 5)), frozen(nn.Linear(5, 2))

    def fn(x):
        out, h = net(x)
        return head(out[-1]), h.squeeze(0)

    return fn, [(tensor(3, 2, 4),) for _ in range(3)]


@program(graphs=1)
def elman_network_of_relus():
    net = frozen(nn.RNN(4, 5, nonlinearity="relu"))
    return net, [(tensor(3, 2, 4),) for _ in range(3)]


@program(graphs=1)
def cells_in_a_loop():
    lstm, gru = frozen(nn.LSTMCell(4, 5)), frozen(nn.GRUCell(5, 5))

    def fn(xs):
        h, c, g = xs.new_zeros(2, 5), xs.new_zeros(2, 5), xs.new_zeros(2, 5)
        for x in xs:
            h, c = lstm(x, (h, c))
            g = gru(h, g)
        return g

    return fn, [(tensor(3, 2, 4),) for _ in range(3)]


@program(graphs=1)
def unbatched_lstm():
    net = frozen(nn.LSTM(4, 5))
    return net, [(tensor(3, 4),) for _ in range(3)]


@program(graphs=1)
def packed_lstm():
    net = frozen(nn.LSTM(4, 5, batch_first=True))

    def fn(x, lengths):
        packed = rnn_utils.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = net(packed)
        padded, counts = rnn_utils.pad_packed_sequence(out, batch_first=True)
        return padded, counts, h, c

    return fn, [(tensor(3, 4, 4), [4, 2, 3]) for _ in range(3)]


@program(graphs=0, breaks=["data-dependent-value"] * 3)
def packed_gru_with_lengths_in_a_tensor():
    net = frozen(nn.GRU(4, 5))

    def fn(x, lengths):
        packed = rnn_utils.pack_padded_sequence(x, lengths, enforce_sorted=True)
        out, h = net(packed)
        return rnn_utils.pad_packed_sequence(out)[0], h

    return fn, [(tensor(4, 3, 4), torch.tensor([4, 3, 1])) for _ in range(3)]


@program(graphs=1)
def pad_sequence():
    def fn(a, b, c):
        return rnn_utils.pad_sequence([a, b, c], batch_first=True, padding_value=-1.0)

    return fn, [(tensor(3, 2), tensor(1, 2), tensor(2, 2)) for _ in range(3)]


@program(graphs=1)
def unpad_sequence_with_known_lengths():
    def fn(x):
        return rnn_utils.unpad_sequence(x, torch.tensor([3, 1]), batch_first=True)

    return fn, [(tensor(2, 3),) for _ in range(3)]


# ---------------------------------------------------------------------------------------------------- utilities


@program(graphs=1)
def parameters_to_vector():
    net = frozen(nn.Linear(3, 2))

    def fn(x):
        return torch.nn.utils.parameters_to_vector(net.parameters()) * x

    return fn, [(tensor(8),) for _ in range(3)]


@program(graphs=1)
def vector_to_parameters():
    net = frozen(nn.Linear(3, 2))

    def fn(x):
        torch.nn.utils.vector_to_parameters(x, net.parameters())
        return net(x[:3])

    return fn, [(tensor(8),) for _ in range(3)], net


@program(graphs=1, later=1)
def clip_grad_norm():
    net = nn.Linear(3, 2)
    for p in net.parameters():
        p.grad = torch.randn_like(p)

    def fn(limit):
        return torch.nn.utils.clip_grad_norm_(net.parameters(), limit)

    return fn, [(1.0,), (0.5,), (0.25,)], lambda: [p.grad for p in net.parameters()]


@program(graphs=1)
def total_norm_of_gradients():
    net = nn.Linear(3, 2)
    for p in net.parameters():
        p.grad = torch.randn_like(p)

    def fn(x):
        with torch.no_grad():
            return x * torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=0, eager=["unsupported-object"])
def a_skipped_initialization():
    def fn(x):
        layer = torch.nn.utils.skip_init(nn.Linear, 3, 2)
        return x + layer.weight.shape[0]

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_module_made_inside():
    def fn(x):
        layer = nn.Linear(3, 2)
        return layer(x).detach()

    return fn, [(tensor(2, 3),) for _ in range(3)]


@program(graphs=1)
def a_buffer_registered_inside():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen = self.seen + x
            return self.seen * 2

    net = Counts()
    return net, [(tensor(3),) for _ in range(3)], net


@program(graphs=1)
def buffers_of_the_buffer_class():
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset = nn.Buffer(torch.ones(3))

        def forward(self, x):
            return x + self.offset

    net = Shift()
    return net, [(tensor(3),) for _ in range(3)], net


@program(graphs=1)
def a_buffer_made_inside():
    def fn(x):
        made = nn.Buffer(x * 2)
        return made + isinstance(made, nn.Buffer)

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=0, later=1, fullgraph=True)
def a_lazy_layer():
    net = nn.Sequential(nn.LazyLinear(3), nn.ReLU())

    def fn(x):
        with torch.no_grad():
            return net(x)

    return fn, [(tensor(2, 4),) for _ in range(3)]


@program(graphs=0, later=2, fullgraph=True)
def several_lazy_layers_below_others():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.last(self.norm(self.first(x)).relu()) * 2

    net = Net()
    return net, [(tensor(3, 5),) for _ in range(3)]


@program(graphs=0, breaks=["data-dependent-value"])
def a_lazy_layer_created_inside():
    def fn(x):
        return nn.LazyLinear(3)(x).shape

    return fn, [(tensor(2, 4),) for _ in range(3)]


# --------------------------------------------------------------------------------------------------- subclasses


@program(graphs=1)
def a_plain_subclass_as_an_argument():
    def fn(x):
        y = x * 2
        return y, type(y) is Plain

    return fn, [(tensor(3).as_subclass(Plain),) for _ in range(3)]


@program(graphs=1)
def a_subclass_is_made_inside():
    def fn(x):
        y = x.as_subclass(Plain)
        return y + 1, isinstance(y, Plain)

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_subclass_of_parameter():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = Marked(torch.randn(3), requires_grad=False)

        def forward(self, x):
            return x * self.w, isinstance(self.w, Marked)

    return Net(), [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def code_around_a_subclass():
    def fn(x, s):
        y = torch.relu(x * 2) + 1
        s = s + y
        return s, (y * x).sum()

    return fn, [(tensor(3), tensor(3).as_subclass(Logged)) for _ in range(3)]


@program(graphs=2, breaks=["tensor-subclass"])
def a_subclass_that_is_formatted_by_its_class():
    class Quantity(torch.Tensor):
        def __format__(self, spec):
            return f"quantity {spec}"

    def fn(x):
        quantity = (x * 2).as_subclass(Quantity)
        return f"{quantity:>3}", x + 1

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_subclass_with_a_torch_function():
    def fn(x):
        del Logged.calls[:]
        y = x.as_subclass(Logged) + 1
        calls = list(Logged.calls)
        return y.as_subclass(torch.Tensor), calls

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def an_object_with_a_torch_function():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            args = tuple(a.factor if isinstance(a, cls) else a for a in args)
            return func(*args, **(kwargs or {}))

    scaled = Scaled(3.0)

    def fn(x):
        return torch.mul(x, scaled)

    return fn, [(tensor(3),) for _ in range(3)]


# ---------------------------------------------------------------------------------------------------- operators


catalogue_library = torch.library.Library("catalogue", "FRAGMENT")
catalogue_library.define("scale(Tensor x, float s=2.0) -> Tensor")
catalogue_library.impl("scale", lambda x, s=2.0: x * s, "CompositeExplicitAutograd")
catalogue_library.define("wave(Tensor x) -> Tensor")
catalogue_library.impl("wave", lambda x: x.sin().cos(), "CompositeImplicitAutograd")
catalogue_library.define("next(Tensor x) -> Tensor")
catalogue_library.impl("next", lambda x: torch.from_numpy(x.numpy() + 1), "CPU")
catalogue_library.define("late(Tensor x) -> Tensor")


@torch.library.custom_op("catalogue::multiply", mutates_args=())
def multiply(x: torch.Tensor, n: int) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * n)


@multiply.register_fake
def _(x, n):
    return torch.empty_like(x)


@torch.library.custom_op("catalogue::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor) -> None:
    out.numpy()[:] = x.numpy() * 3


@torch.library.custom_op("catalogue::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy().clip(0))


@torch.library.custom_op("catalogue::extremes", mutates_args=())
def extremes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.min().clone(), x.max().clone()


@extremes.register_fake
def _(x):
    return x.new_empty(()), x.new_empty(())


@program(graphs=1)
def a_custom_operator():
    def fn(x):
        return multiply(x + 1, 2).sin()

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_custom_operator_that_writes():
    def fn(x):
        out = torch.zeros_like(x)
        fill(x, out)
        return out + 1

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_custom_operator_writes_its_argument():
    def fn(x, y):
        fill(x * 2, y)
        return y + 1

    return fn, [(tensor(3), tensor(3)) for _ in range(3)]


@program(graphs=1)
def a_custom_operator_writes_a_view():
    def fn(x, y):
        fill(x, y[1])
        return y.sum(0)

    return fn, [(tensor(3), tensor(2, 3)) for _ in range(3)]


@program(graphs=2, breaks=["unsupported-call"])
def a_custom_operator_without_a_fake():
    def fn(x):
        return positive(x * 2) + 1

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def an_operator_of_a_library():
    def fn(x):
        scale = torch.ops.catalogue.scale
        return scale(x, 3.0) + scale.default(x) + scale(x, s=1.0)

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_composite_operator_of_a_library():
    def fn(x):
        return torch.ops.catalogue.wave(x) + 1

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1, breaks=["unsupported-call"])
def an_operator_of_a_library_for_the_cpu_only():
    def fn(x):
        return torch.ops.catalogue.next(x) * 2

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1, breaks=["unsupported-call"])
def an_operator_without_a_kernel():
    def fn(x):
        try:
            return torch.ops.catalogue.late(x)
        except NotImplementedError:
            return x + 1

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_custom_operator_with_several_results():
    def fn(x):
        low, high = extremes(x)
        return (x - low) / (high - low)

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def operators_by_their_overloads():
    def fn(x):
        y = torch.ops.aten.add.Tensor(x, x, alpha=2)
        y = torch.ops.aten.relu(y)
        return torch.ops.aten.sum.dim_IntList(y, [0], True), F.gelu(y)

    return fn, [(tensor(3, 2),) for _ in range(3)]


@program(graphs=1)
def operators_by_name_whose_overload_for_numbers_comes_first():
    def fn(x, y, index, n):
        z = torch.ops.aten.lerp(torch.ops.aten.fill(x, n), y, y) + torch.ops.aten.masked_fill(x, x > 0, n)
        z = z + torch.ops.aten.scatter(x, -1, index, y) + torch.ops.aten.clamp_min(x, y)
        return z, torch.ops.aten.eq_(x.clone(), y), torch.ops.aten.tensor_split(x, 2)

    return fn, [(tensor(4, 3), tensor(4, 3), torch.tensor([[0, 2]]), torch.tensor(0.5)) for _ in range(3)]


@program(graphs=1)
def gradients_of_an_operator_by_name_whose_overload_for_numbers_comes_first():
    def fn(x, weight):
        y = torch.ops.aten.lerp(x, x.sin(), weight)
        return y, *torch.autograd.grad(y.sum(), x)

    return fn, [(tensor(4, requires_grad=True), tensor(4)) for _ in range(3)]


@program(graphs=1, later=1, breaks=["data-dependent-value"])
def an_error_of_an_operator_by_name_that_shows_a_tensor():
    def fn(x, n):
        y = x * 2
        return torch.ops.aten.lerp(y, *n) + 1

    return fn, [(torch.arange(3.0), (torch.arange(3.0), torch.arange(3.0), n)) for n in range(3)]


# ------------------------------------------------------------------------------- code that asks whether it is compiled


@program(graphs=1, later=2)
def a_default_that_is_only_made_where_nothing_compiles():
    def fn(x, mask=None):
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[0])
        return x * mask[:, None]

    return fn, [(tensor(2, 3),), (tensor(2, 3), tensor(2)), (tensor(4, 3),)]


@program(graphs=2, later=3, breaks=["data-dependent-condition"], options={"control_flow": "break"})
def a_default_that_is_only_made_where_nothing_compiles_before_a_break():
    def fn(x, mask=None):
        if mask is None and not smelt.is_compiling():
            mask = torch.ones(x.shape[0])
        y = x * mask[:, None]
        return y + 1 if y.sum() > 0 else y - 1

    return fn, [(tensor(2, 3),), (tensor(2, 3), tensor(2)), (tensor(4, 3),)]


@program(graphs=2, later=4, breaks=["data-dependent-value"])
def a_default_that_is_only_made_where_nothing_compiles_after_a_break():
    def fn(x, mask=None):
        y = x + x.sum().tolist()
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[0])
        return y * mask[:, None]

    return fn, [(tensor(2, 3),), (tensor(2, 3), tensor(2)), (tensor(4, 3),)]


@program(graphs=0, later=1, eager=["user-exception"])
def an_error_of_code_that_asks_whether_it_is_compiled():
    def fn(x, weight):
        if torch.compiler.is_compiling():
            torch._check(x.dim() == 2)
        return x @ weight

    return fn, [(tensor(2, 3), tensor(2)), (tensor(2, 3), tensor(3)), (tensor(2, 3), tensor(2))]


# ---------------------------------------------------------------------------------------------------- classes


@program(graphs=1, later=1)
def whether_a_changed_object_is_a_tensor():
    class Part:
        def __init__(self):
            self.size = 1

    def fn(x):
        part = Part()
        part.size += 1
        asked = (torch.is_tensor, torch.is_storage, torch.overrides.is_tensor_like)
        return x + sum(ask(part) for ask in asked) + torch.is_tensor(x)

    return fn, [(tensor(3),), (tensor(3),), (tensor(2),)]
