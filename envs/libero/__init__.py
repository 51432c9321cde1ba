"""`env=libero`: the LIBERO benchmark, 130 language-conditioned tasks on robosuite and MuJoCo.

Entry point: `envs.libero.libero_env.LiberoEnv`. Benchmark code, task definitions and initial
states come from the packages hf-libero, robosuite and bddl; meshes and textures from a folder, or
the project's stand-ins (`envs.libero.stand_in.stand_ins`): docs/libero.md.
"""
