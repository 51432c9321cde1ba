"""Runs model-written programs in isolation and judges them from outside their process.

From the inside out: `runner` is the only other code in the sandbox. `seccomp` and `isolation` are
its walls, and `probe` tests them before use. `local` starts a sandbox per program and reads its
output; `remote` does so on another machine. `scoring` compares results. `problems`, `generator` and
`problem_files` provide problems. `sandbox_env` implements the contract of `envs.base`.
"""
