"""Video encoders and trajectory rewards: how close a failed episode came to the successes of its
task.

Pure torch, numpy and scikit-learn. Knows nothing of siirl, Ray or the simulators: it is handed
frames and embeddings.
"""
