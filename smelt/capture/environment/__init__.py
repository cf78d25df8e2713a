"""The environment of a captured call: the objects from outside of it, their sources, the guards on them, and what the trace
changed."""
