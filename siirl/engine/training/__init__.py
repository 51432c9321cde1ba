"""Training of one module over ranks: engine, optimiser, collectives, weight sync."""
