"""Values on the machine's stack that stand for what is known at run time only: NumPy arrays (`array_proxy.py`, with
operators and methods from `array_proxy_methods.py`), texts of tensors (`text_proxy.py`)."""

from smelt.capture.proxies import array_proxy_methods as array_proxy_methods  # gives `Array` its operators
