"""Filter nodes: select the trajectories that a step trains on."""
