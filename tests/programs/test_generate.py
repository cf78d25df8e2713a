"""`generate()` of transformers over a compiled forward: the cache grows or has a fixed size, beams are searched, and prompts
and batches change from one `generate` to the next."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import sizes, weights
from smelt import compile as smelt_compile
from smelt.report import inspect

MODELS = ("GPT-2", "Llama", "T5")
KINDS: dict[str, dict[str, Any]] = {
    "growing": {},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
}
PROMPTS = ((2, 5), (2, 9), (3, 6), (4, 11), (5, 7))  # batch, length
FEW = 3  # entries: the first sizes of what was decoded often stay beside the prompt's and the decoder's for all sizes


def _model(name: str) -> Any:
    torch.manual_seed(0)
    model: Any = sizes.CASES[name].build().eval()
    weights.fill(model)
    model.generation_config.eos_token_id = None  # all texts come to be equally long
    model.generation_config.pad_token_id = 0
    model._valid_auto_compile_criteria = lambda *a, **k: (
        False
    )  # a static cache has torch.compile compile the model
    return model


def _forward(model: Any) -> tuple[Any, Callable[..., Any]]:
    model.forward = smelt_compile(model.forward)
    return model.forward, model.generate


def _whole(model: Any) -> tuple[Any, Callable[..., Any]]:
    compiled = smelt_compile(model)
    return compiled, compiled.generate


def _generated(generate: Callable[..., Any], prompt: tuple[int, int], **options: Any) -> torch.Tensor:
    ids = torch.randint(3, sizes.VOCABULARY, prompt, generator=torch.Generator().manual_seed(sum(prompt)))
    found: torch.Tensor = generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, **options
    )
    return found


def _most_entries(compiled: Any) -> int:
    return max(len(record.entries) for _, record in inspect.records(compiled))


@pytest.mark.parametrize("name, kind", [(m, k) for m in MODELS for k in KINDS if (m, k) != ("T5", "beams")])
def test_few_entries_give_the_tokens_of_eager(name: str, kind: str) -> None:
    model = _model(name)
    eager = copy.deepcopy(model)
    compiled, generate = _forward(model)
    for prompt in PROMPTS:
        want = _generated(eager.generate, prompt, **KINDS[kind])
        assert torch.equal(_generated(generate, prompt, **KINDS[kind]), want), prompt
        assert _most_entries(compiled) <= FEW
    assert not inspect.reasons(compiled)
    made = {id(entry) for _, record in inspect.records(compiled) for entry in record.entries}
    for prompt in ((3, 8), (6, 4)):  # sizes that were not seen: no entry is made for them
        assert torch.equal(
            _generated(generate, prompt, **KINDS[kind]), _generated(eager.generate, prompt, **KINDS[kind])
        )
    assert {id(entry) for _, record in inspect.records(compiled) for entry in record.entries} == made


@functools.cache
def _tokens(name: str, prompt: tuple[int, int]) -> torch.Tensor:
    return _generated(_model(name).generate, prompt)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_compiled_model(name: str) -> None:
    compiled, generate = _whole(_model(name))
    for prompt in PROMPTS[:4]:
        assert torch.equal(_generated(generate, prompt), _tokens(name, prompt)), prompt
    assert not inspect.reasons(compiled) and _most_entries(compiled) <= FEW
