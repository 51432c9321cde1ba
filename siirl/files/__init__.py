"""Files of users, of installed packages and of the Hugging Face Hub: found, bounded, and read."""
