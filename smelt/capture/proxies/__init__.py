"""VM values for results that exist only at run time: NumPy arrays (`array_proxy.py`, with operators and methods from
`array_proxy_methods.py`) and texts of tensors (`text_proxy.py`); and for objects that change from call to call
(`opaque_proxy.py`)."""

from smelt.capture.proxies import (
    array_proxy_methods as array_proxy_methods,  # gives `ArrayProxy` its operators
)
