"""torch's database of operators with sample inputs, as `op_db`.

Each use of an operator's samples would walk the stack twice, with the source lines of all frames, in search of a test of
`unittest`: 40 ms of processor time, more than most tests here.
"""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]

for _module in (common_utils, core):
    _module.extract_test_fn = lambda: None
