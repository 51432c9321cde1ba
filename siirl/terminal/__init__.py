"""What commands say on a terminal, and their exit status."""
