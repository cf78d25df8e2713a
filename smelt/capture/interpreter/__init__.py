"""The bytecode interpreter: the loop over a frame's instructions, and one handler per opcode."""
