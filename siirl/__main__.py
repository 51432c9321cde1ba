"""`python -m siirl`: the console script `siirl` for an installation whose scripts are not on PATH."""

from siirl.commands import command

if __name__ == "__main__":
    command()
