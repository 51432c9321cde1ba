"""A buffer is filled before it is read."""

import pytest

from siirl.errors import ConfigError
from siirl.execution.dag import NodeType, Pipeline
from siirl.execution.dag.buffers import check_buffers


def passes(batch):
    return batch


def put_and_get(*, put: str, get: str):
    pipeline = Pipeline("p").add_node(
        "put", passes, node_type=NodeType.PUT_TO_BUFFER, config={"buffer": put}
    )
    pipeline.add_node(
        "get", passes, ["put"], node_type=NodeType.GET_FROM_BUFFER, config={"buffer": get}
    )
    return pipeline.build()


def test_a_buffer_that_an_earlier_node_fills_passes():
    check_buffers(put_and_get(put="rows", get="rows"))


def test_a_buffer_without_a_producer_is_refused():
    with pytest.raises(ConfigError, match=r"'get'.*takes from buffer 'other', which 0 nodes"):
        check_buffers(put_and_get(put="rows", get="other"))


def test_a_buffer_that_two_nodes_fill_is_refused():
    graph = (
        Pipeline("p")
        .add_node("one", passes, node_type=NodeType.PUT_TO_BUFFER)
        .add_node("two", passes, ["one"], node_type=NodeType.PUT_TO_BUFFER)
        .add_node("get", passes, ["two"], node_type=NodeType.GET_FROM_BUFFER)
        .build()
    )
    with pytest.raises(ConfigError, match="2 nodes before it fill"):
        check_buffers(graph)


@pytest.mark.parametrize(
    ("readers", "words"), [([], "0 nodes.*none"), (["a", "b"], "2 nodes.*a, b")]
)
def test_rows_that_no_node_or_two_nodes_would_take_are_refused(readers, words):
    pipeline = Pipeline("p").add_node("put", passes, node_type=NodeType.PUT_TO_BUFFER)
    for name in readers:
        pipeline.add_node(name, passes, ["put"], node_type=NodeType.GET_FROM_BUFFER)
    with pytest.raises(ConfigError, match=f"'put' .* fills buffer 'buffer', from which {words}"):
        check_buffers(pipeline.build())
