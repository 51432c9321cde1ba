"""Documented name of the entry point: `python -m siirl.main_dag` is `python -m siirl.train`."""

from siirl.train import command, main

__all__ = ["main"]

if __name__ == "__main__":
    command()
