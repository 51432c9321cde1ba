"""Checks of `siirl.gpu_check`, one file a subject; each runs in a process of its own."""
