"""The scripted expert of LIBERO's tasks; `script` has its entry point."""
