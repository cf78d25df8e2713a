"""GPUs of AMD: which are refused, and what is left to ATen on those that are not."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from smelt import _native, targets
from smelt.config import Config, from_environment
from smelt.errors import Unsupported
from smelt.targets import amd, cuda

ASKED = Config(amd=True, cuda_graphs=True, max_autotune=True)


@pytest.fixture
def gpu(monkeypatch):
    """An MI300, for what a target asks."""
    properties = SimpleNamespace(
        name="AMD Instinct MI300X",
        major=9,
        minor=4,
        multi_processor_count=304,
        max_threads_per_multi_processor=2048,
        gcnArchName="gfx942:sramecc+:xnack-",
        warp_size=64,
    )
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(),))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(_native, "use_hip", lambda: None)  # this process may have a driver already
    return properties


def target(config, *devices):
    return targets.factory(devices or [torch.device("cuda", 0)])(config)


def test_it_is_asked_for(gpu):
    with pytest.raises(Unsupported, match="a tensor on cuda:0: .*never been run on GPUs of AMD.*SMELT_AMD=1"):
        target(Config())
    assert "never been run" in targets.unusable(torch.device("cuda", 0))
    assert from_environment({"SMELT_AMD": "1"}).amd and not Config().amd


def test_what_no_test_compiles_for_is_refused(gpu):
    gpu.gcnArchName = "gfx1100"
    with pytest.raises(Unsupported, match="compiled for gfx1100, only for gfx90a"):
        target(ASKED)


def test_without_triton(gpu, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="Triton is not installed"):
        target(ASKED)


def test_gpus_that_differ(gpu, monkeypatch):
    other = SimpleNamespace(**{**vars(gpu), "multi_processor_count": 228})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: other if d.index else gpu)
    with pytest.raises(Unsupported, match="different kinds"):
        target(ASKED, torch.device("cuda", 0), torch.device("cuda", 1))


def test_what_is_not_known_of_them_is_atens(gpu):
    made = target(ASKED)
    costs = made.costs
    assert costs.threads == 304 and made.generate.keywords["arch"] == "gfx942"
    assert costs.draw_blocks == 0 and costs.alignment is None and not made.channels_last
    assert "tuner" not in made.generate.keywords  # whose products are generated
    assert made.load.args[-1] is None  # no CUDA graphs
    assert cuda.COSTS.draw_blocks == 0 and amd.ARCHS
