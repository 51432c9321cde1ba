"""Checks of `siirl.gpu_check`, one file per subject."""
