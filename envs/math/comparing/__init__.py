"""Decides whether a found answer agrees with the reference.

`agreement` compares texts and numbers. Expressions go to `expressions` (exact arithmetic) or, in a
worker process, to `verification` (math-verify).
"""
