"""Code that runs models and simulators: actor, critic, rollouts, rewards, training engine."""
