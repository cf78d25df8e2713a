"""One explanation of everything that a script compiles."""

from __future__ import annotations

import os

from smelt.capture.driver.cache_entries import Record, all_records
from smelt.report.build_report import FrameRecord
from smelt.report.explanation import Observation


class ScriptExplanation(Observation):
    """Everything compiled under `watching()`, including functions that no longer exist. `name`: the script's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._before = {record for *_, record in all_records()}  # of functions that are not the script's
        self._found: dict[Record, FrameRecord] = {}

    def _why_nothing(self) -> str:
        if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
            return "TORCH_COMPILE_DISABLE=1 turns torch.compile off. Unset it"
        if not self._found:
            return (
                "the script has no compiled function. Wrap the model, model = torch.compile(model), "
                "and call it before the script ends"
            )
        names = ", ".join(dict.fromkeys(frame.name for frame in self._found.values()))
        return f"{names}: compiled functions that the script did not call, or called while they were disabled"

    def is_empty(self) -> bool:
        """Whether nothing was compiled, and no call ran eagerly."""
        return not self._frames()

    def _frames(self) -> list[FrameRecord]:
        for name, resumed, record in all_records():
            if record not in self._before:
                self._found.setdefault(record, FrameRecord(name, resumed, record))
        return [frame for r, frame in self._found.items() if r.entries or r.reasons or r.breaks]
