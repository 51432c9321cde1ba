"""Video encoders, and trajectory rewards that measure how close a failure came to a task's
successes.

It uses only torch, numpy and scikit-learn, and is independent of siirl, Ray and the simulators. Its
inputs are frames and embeddings.
"""
