"""The enum of advantage estimators lists the shipped ones, and the one name that selects an
advantage and a loss.
"""

from siirl.execution.scheduler.enums import AdvantageEstimator
from siirl.params.registered_names import ESTIMATORS


def test_every_shipped_advantage_has_its_name_in_the_enum():
    assert {str(name) for name in AdvantageEstimator} == {*ESTIMATORS, "gspo"}
