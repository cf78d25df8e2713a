"""Graph breaks: where a frame can be left, the instruction that runs for real, and the resume function that goes on."""
