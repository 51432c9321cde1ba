"""Training of a sharded module over ranks: engine, optimiser, collectives, transfer of weights."""
