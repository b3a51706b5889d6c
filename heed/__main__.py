"""`python -m heed`: the command, where no script of that name is on the path."""

from heed.cli import main

if __name__ == "__main__":
    main()
