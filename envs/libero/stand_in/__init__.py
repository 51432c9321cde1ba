"""Assets generated from primitives in place of the benchmark's own, in the same layout."""
