"""Runs the command line: python -m simspec.cli."""

from simspec.cli import main

if __name__ == "__main__":
    main()
