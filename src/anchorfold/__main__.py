"""`python -m anchorfold`: the command line."""

from anchorfold.cli.app import main

main()
