"""Runs checked configurations: training, evaluation, LIBERO's published protocol."""
