"""`python -m smelt`: the command `smelt`."""

from smelt.cli.app import main

if __name__ == "__main__":
    main()
