"""Interfaces for your own training scripts, and the filters of the shipped pipelines."""
