"""Known names in a message about an unknown one."""

from envs.names import LISTED, listed, listed_tasks, nearest


def test_a_few_names_are_all_listed_in_their_order() -> None:
    assert listed("b", ["c", "a"]) == "c, a"
    assert listed("b", []) == "(none)"


def test_of_many_names_the_most_similar_are_listed_in_order_and_the_others_are_counted() -> None:
    names = [f"task-{number:02}" for number in range(LISTED + 8)]
    text = listed("task-17", names)
    shown = text.removesuffix(" and 8 others").split(", ")
    assert len(shown) == LISTED
    assert "task-17" in shown
    assert shown == sorted(shown)


def test_the_nearest_name_is_proposed_and_no_distant_one() -> None:
    assert nearest("reech", ["reach", "push"]) == " Did you mean 'reach'?"
    assert nearest("zzz", ["reach", "push"]) == ""


def test_a_long_list_of_tasks_has_its_first_ten_and_a_long_name_its_first_letters() -> None:
    assert listed_tasks(["b", "a"]) == "b, a"
    many = listed_tasks([str(task) for task in range(200_000)])
    assert many == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 199990 more, 200000 tasks in all"
    assert listed_tasks(["x" * 100_000, "y"]) == f"{'x' * 99}…, y"
