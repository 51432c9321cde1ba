"""Simulators that the tests of LIBERO share: each takes half a second to build, and stand-ins give
a warning.
"""

import warnings

import pytest


@pytest.fixture(scope="session")
def stand_ins():
    from envs.libero.assets import StandInWarning, find_assets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StandInWarning)
        return find_assets("stand_in")


@pytest.fixture(scope="session")
def make_simulator(stand_ins):
    """Simulators by suite and number; the last ones are kept."""
    from envs.libero.folders import import_libero
    from envs.libero.suites import suite_tasks

    import_libero()
    from envs.libero.libero_simulator import LiberoSimulator

    kept = {}

    def make(suite, number):
        if (suite, number) not in kept:
            kept[suite, number] = LiberoSimulator(suite_tasks(suite)[number], stand_ins)
        return kept[suite, number]

    return make
