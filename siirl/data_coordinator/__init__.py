"""Data between the nodes of a graph: samples, batches, balanced partitions, the coordinator that hands them out, the task loader.

Import from the modules (`sample`, `balance`, `coordinator`, `ray_edge`, `loader`, `protocol`): `balance`, `coordinator` and `loader`
need no torch, and only `ray_edge` needs Ray.
"""
