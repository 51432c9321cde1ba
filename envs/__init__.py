"""Environments: text and simulators behind one asynchronous contract (`envs.base`). They do not
depend on siirl, Ray or Hydra.
"""
