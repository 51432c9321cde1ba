"""Code that a model wrote, run where it can do no harm, and judged from outside of its process.

From the inside out: `runner` is all that lives in the sandbox beside the program; `seccomp` and
`isolation` are its walls, `probe` tries them before they are trusted; `local` starts a sandbox for
a program and reads what comes back; `remote` does so on another machine; `scoring` compares;
`problems`, `generator` and `problem_files` say what is asked for; `environment` puts them behind
the contract of `envs.base`.
"""
