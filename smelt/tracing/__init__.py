"""Fake tensors, and the recording of what happens to them: `Trace` (`record/trace.py`) and its parts
(`record/trace_parts.py`), the two modes, and what is made of the record: the two graphs (`record/finish_trace.py`) and
the joint graph (`backward/joint.py`). docs/tracing.md says where is what."""
