"""Acting: the inference engine that batches requests, episodes as coroutines, and the executor that
runs many of them.
"""
