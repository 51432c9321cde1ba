"""Rollouts of vision-language-action policies in simulators."""
