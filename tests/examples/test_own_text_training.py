"""The example of a training script of one's own trains."""

import re

from docs.examples import own_text_training


def test_two_steps_are_trained_on_mixed_groups_by_what_acts(capsys):
    own_text_training.main(steps=2, questions=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    for line in lines:
        right, gap = re.search(r"of which (\d+)% right; log-prob gap (\S+)$", line).groups()
        assert 0 < int(right) < 100  # of groups in which some are right and some are wrong
        assert float(gap) < 1e-4  # what acted had the weights of before the update, in the second step those of after the first
