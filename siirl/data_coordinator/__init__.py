"""Data between the nodes of a graph: samples, batches, balanced partitions, the coordinator, row
transport between ranks, and streams of tasks and prompts.

Import from the modules. Only `sample`, `prompts`, `protocol.batch`, `redistribution`,
`row_transport` and `ray_redistribution` need torch; only `ray_edge` and `ray_redistribution` need
Ray.
"""
