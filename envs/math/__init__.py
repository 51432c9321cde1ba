"""Checkable maths.

`math_env` implements the contract of `envs.base`. `generators` and `question_sources` provide
questions. `grading` decides: `finding` locates the answer in a text, `parsing` reads its words and
numbers, `comparing` holds it against the reference. Nothing is imported here: worker processes need
one module each.
"""
