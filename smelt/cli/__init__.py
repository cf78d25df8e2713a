"""The command `smelt`: runs, measures and explains scripts, lists operators, manages the disk cache."""
