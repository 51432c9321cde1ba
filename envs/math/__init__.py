"""Checkable maths.

`math_env` implements the contract of `envs.base`. `generators` and `question_sources` provide
questions. `answers`, `expressions` and `verification` read and compare answers, and `grading`
decides with them. Nothing is imported here: worker processes need one module each.
"""
