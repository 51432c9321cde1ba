"""Documented place of custom reward nodes; any other module works too."""
