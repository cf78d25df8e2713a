"""Values on the machine's stack that stand for what is known at run time only: NumPy arrays (`arrays.py`, with operators and
methods from `array_methods.py`), texts of tensors (`texts.py`)."""

from smelt.capture.standins import array_methods as array_methods  # gives `Array` its operators
