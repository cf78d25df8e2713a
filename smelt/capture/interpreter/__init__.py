"""The virtual machine: its loop over a frame's instructions, and what each opcode does."""
