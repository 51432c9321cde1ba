"""Rows of weights go into the parameters of an inference engine, where its loader would put them.

The fakes load as vLLM does: a layer of several matrices in one parameter, a layer of which each GPU
has some columns, and a vocabulary with rows of padding.
"""

import pytest
import torch
from torch import nn

from siirl.engine.rollout.vllm.weight_places import ByLayers, InPlace, weight_places
from siirl.models.weight_rows import in_rows


class Model(nn.Module):
    """Half of the rows of `q` and `k`, half of the columns of `out`, three words of five."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.full((4, 3), -1.0))
        self.out = nn.Parameter(torch.full((3, 2), -1.0))
        self.words = nn.Parameter(torch.full((4, 2), -1.0))
        self.scale = nn.Parameter(torch.full((1,), -1.0))
        self.loads = 0

    def load_weights(self, weights):
        for name, weight in weights:
            self.loads += 1
            getattr(self, f"load_{name}")(weight)

    def load_q(self, weight):
        self.qk.data.narrow(0, 0, 2).copy_(weight.narrow(0, 2, 2))

    def load_k(self, weight):
        self.qk.data.narrow(0, 2, 2).copy_(weight.narrow(0, 2, 2))

    def load_out(self, weight):
        self.out.data.copy_(weight.narrow(1, 2, 2))

    def load_words(self, weight):
        self.words[:3].data.copy_(weight.narrow(0, 2, 3))
        self.words[3:].data.fill_(0)

    def load_scale(self, weight):
        self.scale.data.copy_(2 * weight.reshape(1))


WEIGHTS = {
    "q": torch.arange(12.0).reshape(4, 3),
    "k": torch.arange(12.0, 24.0).reshape(4, 3),
    "out": torch.arange(12.0).reshape(3, 4),
    "words": torch.arange(10.0).reshape(5, 2),
    "scale": torch.tensor(3.0),
}


@pytest.mark.parametrize("most_bytes", [1, 24, 1 << 20])
def test_rows_go_where_the_loader_would_put_them(most_bytes):
    model, expected = Model(), Model()
    expected.load_weights(WEIGHTS.items())
    places = InPlace(model)
    for _ in range(2):
        places.begin()
        for rows in in_rows(WEIGHTS.items(), most_bytes=most_bytes):
            places.take(rows)
        places.finish()
    for name, weight in expected.named_parameters():
        assert torch.equal(getattr(model, name), weight), name


def test_a_loader_that_copies_is_called_once_and_one_that_computes_every_time():
    model = Model()
    places = InPlace(model)
    for _ in range(3):
        places.begin()
        for rows in in_rows(WEIGHTS.items(), most_bytes=1):
            places.take(rows)
    assert model.loads == 4 + 3 * 2  # `scale` is looked at and loaded


def test_a_weight_that_the_engine_lacks_is_ignored():
    class WithoutHead(Model):
        def load_head(self, weight): ...

    model = WithoutHead()
    places = InPlace(model)
    places.begin()
    for rows in in_rows([("head", torch.ones(4, 4))], most_bytes=16):
        places.take(rows)
    assert model.loads == 1


def layer(method: str) -> nn.Linear:
    """A layer with vLLM's method of this name."""
    made = nn.Linear(2, 2)
    made.quant_method = type(method, (), {})()
    return made


def test_layers_whose_weights_change_after_loading_are_reloaded_by_vllm():
    plain, quantised = layer("UnquantizedLinearMethod"), layer("Fp8LinearMethod")
    assert isinstance(weight_places(nn.Sequential(plain), None), InPlace)
    assert isinstance(weight_places(nn.Sequential(plain, quantised), None), ByLayers)
