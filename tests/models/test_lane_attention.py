"""Masks of lanes: dense, and in the blocks that a GPU computes, which a CPU computes too, slowly."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask
from transformers import Qwen2Config, Qwen2ForCausalLM

from siirl.engine.training.compiled_blocks import CompiledBlocks
from siirl.models import lane_attention
from siirl.models.lane_attention import LaneMask, attend_in_lanes
from siirl.models.language_model import LanguageModel

SHAPE = {
    "vocab_size": 11,
    "hidden_size": 24,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def mask_of(owners: list[int], prefixes: list[int]) -> LaneMask:
    """One lane."""
    return LaneMask(torch.tensor([owners]), torch.tensor([prefixes]), shared=True)


def model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval())


def test_an_answer_sees_its_prompt_and_itself_and_padding_sees_padding() -> None:
    # prompt 9 with two tokens, two answers of two and one token, padding
    mask = mask_of([9, 9, 0, 0, 1, -1], [9, 9, 9, 9, 9, -1]).dense_L1SS()[0, 0]
    seen = [row.nonzero().flatten().tolist() for row in mask]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [5]]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=5, max_size=5),
        min_size=1,
        max_size=3,
    )
)
@settings(derandomize=True, deadline=None, max_examples=30)
def test_blocks_are_the_dense_mask(lanes: list[list[tuple[int, int]]]) -> None:
    owner_LS, prefix_LS = torch.tensor(lanes).unbind(-1)
    mask = LaneMask(owner_LS, prefix_LS, shared=True)
    rule = mask.blocks().mask_mod
    found = create_mask(rule, len(lanes), 1, 5, 5, device="cpu")
    assert torch.equal(found, mask.dense_L1SS())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_computes_the_same_by_blocks_as_by_a_dense_mask(dtype: torch.dtype) -> None:
    ids_LS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    positions_LS = torch.tensor([[0, 1, 2, 3, 2, 3, 4]])
    mask = mask_of([9, 9, 0, 0, 1, 1, 1], [9] * 7)
    whole = model()
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        expected = whole(ids_LS, positions_LS, mask)
        attend_in_lanes(whole.causal_lm)
        found = whole(ids_LS, positions_LS, mask.blocks())
        plain = whole(ids_LS, positions_LS, mask)
    assert torch.equal(plain, expected)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def compiles() -> Iterator[None]:
    """Leave torch.compile as it was."""
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.mark.usefixtures("compiles")
def test_compiled_blocks_compute_the_same_under_the_mask() -> None:
    ids_LS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    positions_LS = torch.tensor([[0, 1, 2, 3, 2, 3, 4]])
    mask = mask_of([9, 9, 0, 0, 1, 1, 1], [9] * 7)
    whole = model()
    attend_in_lanes(whole.causal_lm)
    with torch.no_grad():
        expected = whole(ids_LS, positions_LS, mask)
        compiled = CompiledBlocks([*whole.causal_lm.base_model.layers], backend="eager")
        with compiled.passes():
            found = whole(ids_LS, positions_LS, mask.blocks())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_attention_function_reads_a_text_alone_as_torch_does() -> None:
    ids, positions = torch.tensor([[1, 2, 3, 4]]), torch.arange(4)[None]
    whole = model()
    expected = whole(ids, positions)
    attend_in_lanes(whole.causal_lm)
    assert whole.causal_lm.config._attn_implementation == lane_attention.NAME
    assert torch.equal(whole(ids, positions), expected)


def test_packed_texts_stay_apart_by_their_positions_under_the_attention_function() -> None:
    ids, positions = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0, 1, 0, 1]])
    whole = model()
    attend_in_lanes(whole.causal_lm)
    together = whole(ids, positions)
    alone = torch.cat([whole(ids[:, part], positions[:, part]) for part in ([0, 1], [2, 3])], 1)
    torch.testing.assert_close(together, alone)
