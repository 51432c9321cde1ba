"""Jobs behind the commands: training, evaluation, LIBERO's published protocol, model cards."""
