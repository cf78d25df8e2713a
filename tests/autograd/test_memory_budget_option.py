"""Values of the option `activation_memory_budget`."""

import pytest

import smelt
from smelt import config
from smelt.errors import OptionError


@pytest.mark.parametrize("value", [0, 1, 0.0, 0.25, 1.0])
def test_valid_values(value):
    assert config.DEFAULT.with_options({"activation_memory_budget": value}).activation_memory_budget == value


@pytest.mark.parametrize("value", [-0.1, 1.5, 2, float("nan"), "half", True, None])
def test_invalid_values(value):
    with pytest.raises(OptionError, match="activation_memory_budget"):
        smelt.compile(lambda x: x, options={"activation_memory_budget": value})


def test_environment_variable():
    assert config.from_environment({"SMELT_ACTIVATION_MEMORY_BUDGET": "0.5"}).activation_memory_budget == 0.5
    for text in ("much", "3"):
        with pytest.raises(OptionError, match="activation_memory_budget|ACTIVATION_MEMORY_BUDGET"):
            config.from_environment({"SMELT_ACTIVATION_MEMORY_BUDGET": text})
