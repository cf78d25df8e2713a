"""Fake tensors, and the recording of what happens to them: `Trace` (`trace.py`) and its parts (`parts.py`), the two modes,
and what is made of the record: the two graphs (`finish.py`) and the joint graph (`joint.py`). docs/tracing.md says where is
what."""
