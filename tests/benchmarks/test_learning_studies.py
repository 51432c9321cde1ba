"""The arms of the learning studies are jobs that siirl accepts."""

import pytest

from benchmarks import embodied_learning, libero_learning, text_learning
from benchmarks.learning_studies import overrides_of
from siirl.params.parser import parse

STUDIES = {
    f"{module.__name__}.{name}": study
    for module in (embodied_learning, libero_learning, text_learning)
    for name, study in module.STUDIES.items()
}


@pytest.mark.parametrize(
    ("study", "arm"), [(name, arm) for name, study in STUDIES.items() for arm in study.arms]
)
def test_an_arm_is_a_job(study, arm):
    parse(overrides_of(STUDIES[study], arm, start="assets/tiny_vla"))
