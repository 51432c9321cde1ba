"""Data between the nodes of a graph: samples, batches, balanced partitions, the coordinator that
hands them out, the transport of rows between ranks, the stream of tasks.

Import from the modules. Only `sample`, `prompts`, `protocol.batch`, `redistribution`,
`row_transport` and `ray_redistribution` need torch; only `ray_edge` and `ray_redistribution` need
Ray.
"""
