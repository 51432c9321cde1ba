"""Environments: text and simulators behind one asynchronous contract (`envs.base`). Independent of
siirl, Ray and Hydra.
"""
