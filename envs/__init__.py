"""Environments: text and simulators behind one asynchronous contract (`envs.base`). Knows nothing
of siirl, Ray or Hydra.
"""
