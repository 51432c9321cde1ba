"""`python -m siirl`: the `siirl` command for installations without scripts on PATH."""

from siirl.commands import command

if __name__ == "__main__":
    command()
