"""The enum of advantage estimators says what the registry has, and the one name that stands for an advantage and a loss."""

from siirl.algos import ADVANTAGES
from siirl.execution.scheduler.enums import AdvantageEstimator


def test_every_shipped_advantage_has_its_name_in_the_enum():
    assert {str(name) for name in AdvantageEstimator} == {*ADVANTAGES, "gspo"}
