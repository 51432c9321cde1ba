"""Texts that commands print on a terminal: messages, warnings, and the last line of a run."""
