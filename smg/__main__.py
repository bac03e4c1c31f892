"""`python -m smg` is `smg`."""

from smg.cli import main

main()
