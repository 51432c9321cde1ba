"""State of a MuJoCo simulation, for stored initial states, and the warnings of a diverged one."""

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
"""All inputs of the next step, including the solver's warm start."""
DIVERGENCE = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)

# MuJoCo would write warnings to MUJOCO_LOG.TXT in the working folder; relevant ones are counted in
# `data.warning`, see `divergence`.
mujoco.set_mju_user_warning(lambda message: None)


def state_of(model: Any, data: Any) -> NDArray[np.float64]:
    """A copy of the state; `mujoco.mj_setState(model, data, state, STATE)` restores it."""
    state = np.empty(mujoco.mj_stateSize(model, STATE))
    mujoco.mj_getState(model, data, state, STATE)
    return state


def divergence(data: Any) -> list[str]:
    """Names of the warnings by which MuJoCo reports that the simulation diverged."""
    return [warning.name for warning in DIVERGENCE if data.warning[warning].number]
