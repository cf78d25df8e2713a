"""The command `smelt`: runs, measures and explains scripts, and says what smelt knows and where it keeps things."""
