"""Data between the nodes of a graph: samples, batches, balanced partitions, the coordinator, row
transport between ranks, and streams of tasks and prompts.

Import from the modules. The coordinator and its partitions need no torch; only `ray_edge` and
`ray_redistribution` need Ray.
"""
