"""Video encoders and trajectory rewards: how close a failed episode came to the successes of its
task.

Pure torch, numpy and scikit-learn, independent of siirl, Ray and the simulators: its inputs are
frames and embeddings.
"""
