"""`python -m mirage_dsl` is `mirage-dsl`."""

from mirage_dsl.cli import main

main()
