"""Checkable maths.

`environment` puts it behind the contract of `envs.base`; `generators` and `question_sources` say
what is asked; `answers`, `expressions` and `verification` read and compare, and `grading` decides
with them. Nothing is imported here: worker processes need one module each.
"""
