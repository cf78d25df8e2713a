"""Completeness of guards: each change of state that changes the effect of a call must fail a guard of the first capture.

Each change is applied to a small BERT. If no guard fails, the earlier capture must still be correct.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.models.bert import modeling_bert

from smelt.guards.guard import first_failing
from tests.harness.agreement import same
from tests.harness.captured import capture, replay, slots_of

ABSENT = object()


def build():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    return model, {
        "input_ids": torch.randint(0, 50, (2, 8)),
        "attention_mask": torch.ones(2, 8, dtype=torch.long),
    }


@contextlib.contextmanager
def replaced(owner, name, value):
    """`owner.name` (or `owner[name]`) is `value` for the duration."""
    is_dict = isinstance(owner, dict)
    old = (
        owner.get(name, ABSENT)
        if is_dict
        else vars(owner).get(name, ABSENT)
        if not name.startswith("__")
        else getattr(owner, name)
    )
    store = owner.__setitem__ if is_dict else lambda n, v: setattr(owner, n, v)
    store(name, value)
    try:
        yield
    finally:
        if old is not ABSENT:
            store(name, old)
        elif is_dict:
            del owner[name]
        else:
            delattr(owner, name)


@contextlib.contextmanager
def during(do, undo):
    made = do()
    try:
        yield
    finally:
        undo(made)


def layer(model):
    return model.encoder.layer[0].attention.self


def linear_plus_one(self, x):
    return F.linear(x, self.weight, self.bias) + 1


CHANGES = {
    "forward patched on an instance": lambda m, kw: replaced(
        layer(m).query, "forward", lambda x: F.linear(x, layer(m).query.weight) + 1
    ),
    "forward patched on a class": lambda m, kw: replaced(nn.Linear, "forward", linear_plus_one),
    "function of a module patched": lambda m, kw: replaced(F, "linear", lambda x, w, b: x @ w.t()),
    "layer_norm patched": lambda m, kw: replaced(F, "layer_norm", lambda *a, **k: a[0]),
    "property added to a class": lambda m, kw: replaced(
        nn.Linear, "weight", property(lambda s: s._parameters["weight"] * 2)
    ),
    "defaults of a function": lambda m, kw: replaced(
        transformers.integrations.sdpa_attention.sdpa_attention_forward, "__defaults__", (0.5, 0.7, False)
    ),
    "code of a function": lambda m, kw: replaced(
        modeling_bert.BertSelfOutput.forward, "__code__", (lambda self, h, i: h + i).__code__
    ),
    "global hook": lambda m, kw: during(
        lambda: torch.nn.modules.module.register_module_forward_hook(
            lambda m, i, o: o + 1 if isinstance(o, torch.Tensor) else o
        ),
        lambda h: h.remove(),
    ),
    "hook of a module": lambda m, kw: during(
        lambda: layer(m).query.register_forward_hook(lambda m, i, o: o + 1), lambda h: h.remove()
    ),
    "default dtype": lambda m, kw: during(
        lambda: torch.set_default_dtype(torch.float64), lambda _: torch.set_default_dtype(torch.float32)
    ),
    "grad mode": lambda m, kw: torch.enable_grad(),
    "autocast": lambda m, kw: torch.autocast("cpu"),
    "inference mode": lambda m, kw: torch.inference_mode(),
    "deterministic algorithms": lambda m, kw: during(
        lambda: torch.use_deterministic_algorithms(True), lambda _: torch.use_deterministic_algorithms(False)
    ),
    "default device": lambda m, kw: torch.device("meta"),
    "kernels of attention": lambda m, kw: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "submodule shared": lambda m, kw: replaced(
        m.encoder.layer[1]._modules, "intermediate", m.encoder.layer[0].intermediate
    ),
    "submodule of another class": lambda m, kw: replaced(
        m.encoder.layer[1]._modules, "intermediate", nn.Identity()
    ),
    "parameter without gradient": lambda m, kw: replaced(
        layer(m).query._parameters, "bias", nn.Parameter(torch.zeros(32), requires_grad=False)
    ),
    "parameter of another dtype": lambda m, kw: replaced(
        layer(m).query._parameters, "bias", nn.Parameter(torch.zeros(32, dtype=torch.bfloat16))
    ),
    "layer removed": lambda m, kw: during(
        lambda: m.encoder.layer._modules.pop("1"), lambda l: m.encoder.layer._modules.__setitem__("1", l)
    ),
    "layer added": lambda m, kw: during(
        lambda: m.encoder.layer._modules.__setitem__("2", m.encoder.layer[0]),
        lambda _: m.encoder.layer._modules.pop("2"),
    ),
    "attribute of the configuration": lambda m, kw: replaced(
        m.config.__dict__, "_attn_implementation_internal", "eager"
    ),
    "class of the activation": lambda m, kw: replaced(
        type(m.encoder.layer[0].intermediate.intermediate_act_fn), "forward", lambda s, x: x
    ),
    "class attribute of the configuration": lambda m, kw: replaced(type(m.config), "is_decoder", True),
    "training of a submodule": lambda m, kw: replaced(m.encoder.layer[0].output.dropout, "training", True),
    "argument None": lambda m, kw: replaced(kw, "attention_mask", None),
    "argument of another shape": lambda m, kw: replaced(kw, "input_ids", torch.zeros(2, 4, dtype=torch.long)),
    "argument of other strides": lambda m, kw: replaced(
        kw, "input_ids", torch.zeros(8, 2, dtype=torch.long).t()
    ),
    "argument added": lambda m, kw: replaced(kw, "output_hidden_states", True),
    "shadowed builtin": lambda m, kw: replaced(vars(modeling_bert), "isinstance", lambda a, b: False),
}


def call(model, **kwargs):
    return model(**kwargs)


@pytest.mark.parametrize("name", CHANGES)
def test_a_guard_notices(name):
    model, kwargs = build()
    with torch.no_grad():
        frame = capture(call, model, **kwargs)
        assert first_failing(frame.guards, slots_of(call, (model,), kwargs)) is None
        with CHANGES[name](model, kwargs):
            failing = first_failing(frame.guards, slots_of(call, (model,), kwargs))
            if failing is None:
                got, want = replay(frame, slots_of(call, (model,), kwargs)), model(**kwargs)
                same(dict(got), dict(want), "no guard noticed; result")
        assert (
            first_failing(frame.guards, slots_of(call, (model,), kwargs)) is None
            or "class" in name
            or "property" in name
        )
