"""Objects from outside of the captured call: where each was found, what was read of it, and what the trace changed."""
