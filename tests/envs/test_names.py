"""Known names in a message about an unknown one."""

from envs.names import LISTED, listed, nearest


def test_a_few_names_are_all_listed_in_their_order() -> None:
    assert listed("b", ["c", "a"]) == "c, a"
    assert listed("b", []) == "(none)"


def test_of_many_names_the_most_similar_come_first_and_the_others_are_counted() -> None:
    names = [f"task-{number:02}" for number in range(LISTED + 8)]
    text = listed("task-17", names)
    assert text.startswith("task-17, ")
    assert text.count(",") == LISTED - 1
    assert text.endswith(" and 8 others")


def test_the_nearest_name_is_proposed_and_no_distant_one() -> None:
    assert nearest("reech", ["reach", "push"]) == " Did you mean 'reach'?"
    assert nearest("zzz", ["reach", "push"]) == ""
