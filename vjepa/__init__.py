"""Video encoders, and trajectory rewards that measure how close a failure came to the task's
successes.

Pure torch, numpy and scikit-learn, independent of siirl, Ray and the simulators: its inputs are
frames and embeddings.
"""
