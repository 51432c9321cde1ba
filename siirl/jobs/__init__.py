"""From a checked configuration to a finished run: training, evaluation, LIBERO's published
protocol.
"""
