"""Extension points: custom filters, rewards, advantages and losses."""
