"""The virtual machine as the packages above see it: its state in parts, and the operations they may ask of it."""
