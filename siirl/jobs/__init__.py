"""Jobs behind the commands: training, evaluation, LIBERO's protocol, rewards, exports."""
