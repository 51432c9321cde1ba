"""One engine on one rank: optimiser, schedule, clipping, skipped steps, types, weight files."""

import pytest
import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from tiny_training import (
    TinyPolicy,
    largest_difference,
    make_actor,
    make_engine,
    trajectories,
    weights,
    write_old_files,
)
from torch import nn

from siirl.algos.log_probs import TokenScores
from siirl.engine.actor.chunk_windows import chunk_windows
from siirl.engine.training.batch_loss import LossSum
from siirl.engine.training.collectives import OneProcess
from siirl.engine.training.optimizer import decayed_names
from siirl.engine.training.train_engine import SKIPS_IN_A_ROW, TrainEngine
from siirl.errors import CheckpointError, ConfigError, InvariantError, TensorError
from siirl.params import OptimizerArguments


class Line(nn.Module):
    """One weight, w."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, 1))


def line_engine(**options):
    """An engine whose log-probs are w * x; see `step` for the loss."""

    def scorer(module, micro_batch, temperature):
        return TokenScores(module.w * micro_batch["x"], torch.zeros_like(micro_batch["x"]))

    settings = {"lr": 0.1, "scheduler": "constant", "weight_decay": 0.0, **options.pop("optim", {})}
    return TrainEngine(
        module=options.pop("module", None) or Line(),
        scorer=scorer,
        ranks=OneProcess(),
        optim=OptimizerArguments(**settings),
        total_steps=options.pop("total_steps", None),
        micro_batch_size=2,
        temperature=1.0,
        **options,
    ).initialize()


def step(engine, *values):
    """One step on the mean of w * x over the rows; its gradient is the mean of x."""
    batch = TensorDict(
        {"x": torch.tensor(values, dtype=torch.float32).reshape(-1, 1)}, batch_size=[len(values)]
    )
    return engine.train_batch(
        batch,
        lambda scores, rows: LossSum(scores.log_probs_BT.sum()),
        lambda rows: torch.tensor(len(rows)),
    )


def test_loss_and_gradient_are_means_over_the_whole_batch_not_over_micro_batches():
    result = step(line_engine(), 1.0, 2.0, 6.0)  # micro-batches of two rows and of one
    assert (result.batch.loss, result.batch.weight, result.grad_norm) == (
        pytest.approx(3.0),
        3.0,
        pytest.approx(3.0),
    )


@pytest.mark.parametrize("cut", [None, lambda batch: chunk_windows(batch, chunks=2)])
def test_a_loss_without_a_gradient_is_refused_and_the_next_batch_trains(cut):
    engine, batch = make_engine(cut=cut), trajectories(3)

    def train(loss_fn):
        return engine.train_batch(batch, loss_fn, lambda rows: torch.tensor(len(rows)))

    with pytest.raises(TensorError, match=r"loss has no gradient.* without detach"):
        train(lambda scores, _: LossSum(scores.log_probs_BT.detach().sum()))
    assert train(lambda scores, _: LossSum(scores.log_probs_BT.sum())).applied


def test_clipping_scales_the_gradient_and_reports_the_norm_before():
    engine = line_engine(max_grad_norm=0.5, optim={"lr": 1.0})
    assert step(engine, 4.0).grad_norm == 4.0
    moment = engine.optimizer.state[engine.module.w]["exp_avg"]
    assert moment.item() == pytest.approx(0.05)  # (1 - beta1) * 0.5


def test_the_first_step_of_adam_is_the_gradient_over_its_size_plus_epsilon():
    engine = line_engine(optim={"lr": 0.1, "eps": 1.0})
    step(engine, 4.0)
    assert engine.module.w.item() == pytest.approx(1 - 0.1 * 4 / (4 + 1))


def test_no_rows_make_no_step():
    engine = line_engine()
    result = step(engine)
    assert (result.applied, engine.steps, engine.module.w.item()) == (False, 0, 1.0)


def test_a_gradient_that_is_not_finite_is_not_applied_and_does_not_move_the_schedule():
    engine = line_engine()
    assert not step(engine, torch.inf).applied
    assert (engine.steps, engine.module.w.item()) == (0, 1.0)
    assert step(engine, 1.0).applied


def test_gradients_that_stay_infinite_stop_the_run():
    engine = line_engine()
    for _ in range(SKIPS_IN_A_ROW - 1):
        step(engine, torch.inf)
    with pytest.raises(InvariantError, match="not finite in 3 optimiser steps in a row"):
        step(engine, torch.inf)


def test_the_learning_rate_follows_the_applied_steps():
    engine = line_engine(
        optim={"scheduler": "linear_with_warmup", "warmup_steps": 1}, total_steps=3
    )
    rates = [step(engine, value).learning_rate for value in (1.0, torch.nan, 1.0, 1.0)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])


def test_a_decaying_rate_follows_the_run_when_steps_were_skipped():
    engine = line_engine(
        optim={"scheduler": "linear_with_warmup", "warmup_steps": 1}, total_steps=5
    )
    engine.set_progress(0.8)
    rates = [step(engine, 1.0).learning_rate for _ in range(2)]
    # warm-up still applies; then a quarter of the run remains
    assert rates == pytest.approx([0.05, 0.025])


def test_a_decaying_rate_does_not_lag_behind_the_run():
    engine = line_engine(
        optim={"scheduler": "linear_with_warmup", "warmup_steps": 0}, total_steps=4
    )
    engine.set_progress(0.25)
    assert [step(engine, 1.0).learning_rate for _ in range(3)] == pytest.approx(
        [0.075, 0.075, 0.05]
    )


def test_an_impossible_schedule_is_refused_before_the_first_batch():
    with pytest.raises(ConfigError, match="needs the length of the run"):
        line_engine(optim={"scheduler": "cosine_with_warmup", "warmup_steps": 0})


def test_only_matrices_decay():
    assert decayed_names(TinyPolicy()) == {
        "inputs.weight",
        "blocks.0.weight",
        "blocks.1.weight",
        "head.weight",
    }


def test_weight_decay_is_that_of_adamw():
    engine = line_engine(optim={"weight_decay": 0.5})
    step(engine, 0.0)
    assert engine.module.w.item() == pytest.approx(1.0 - 0.1 * 0.5)


def test_an_engine_without_optimiser_scores_and_refuses_to_train():
    engine = make_engine(optim=None)
    batch = trajectories(3)
    assert make_actor(engine).compute_log_prob(batch).log_probs_BT.shape == (3, 12)
    with pytest.raises(ConfigError, match="no optimiser"):
        make_actor(engine).update(batch)


def test_frozen_weights_do_not_change():
    policy = TinyPolicy()
    policy.head.requires_grad_(False)
    engine = make_engine(module=policy)
    before = weights(engine)
    make_actor(engine).update(trajectories(4))
    after = weights(engine)
    assert torch.equal(before["head.weight"], after["head.weight"])
    assert not torch.equal(before["inputs.weight"], after["inputs.weight"])


def test_passes_in_bfloat16_leave_weights_and_gradients_in_float32():
    engine = make_engine(compute_dtype=torch.bfloat16)
    make_actor(engine).update(trajectories(4))
    exact = make_engine()
    make_actor(exact).update(trajectories(4))
    assert {tensor.dtype for tensor in engine.gradients[0].values()} == {torch.float32}
    assert 0.0 < largest_difference(engine.gradients[0], exact.gradients[0]) < 0.05


def test_gradients_of_a_weight_that_is_used_twice_are_added_in_float32():
    """Autocast's cache would add them in bfloat16, where 256 + 1 is 256."""

    def scorer(module, batch, temperature):
        return module(torch.tensor([[256.0]])) + module(torch.tensor([[1.0]]))

    module = torch.nn.Linear(1, 1, bias=False)
    engine = make_engine(module=module, scorer=scorer, compute_dtype=torch.bfloat16)
    engine.accumulate_gradient(
        trajectories(1), lambda scores, _: LossSum(loss=scores.sum()), lambda _: torch.ones(())
    )
    assert module.weight.grad.item() == 257


def test_the_module_is_in_evaluation_mode():
    assert not make_engine().module.training


def test_uploaded_weights_on_one_rank_are_the_modules_own_memory():
    engine = make_engine()
    assert engine.upload_weights()["head.weight"].data_ptr() == engine.module.head.weight.data_ptr()


def test_uploaded_weights_include_buffers():
    assert make_engine().upload_weights()["scale"].item() == pytest.approx(1 / 255)


def test_saved_and_loaded_engines_continue_alike(tmp_path):
    one, other = make_engine(), make_engine(module=TinyPolicy(seed=5))
    make_actor(one).update(trajectories(4))
    one.save(tmp_path)
    other.load(tmp_path)
    for engine in (one, other):
        make_actor(engine).update(trajectories(4, seed=1))
    assert other.steps == 2
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights(one).values(), weights(other).values(), strict=True)
    )


class LineWithUnused(Line):
    """A second weight that no output depends on, as an auxiliary head."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))


def test_a_weight_that_no_gradient_reaches_is_named_and_its_engine_can_be_saved(tmp_path, caplog):
    one, other = line_engine(module=LineWithUnused()), line_engine(module=LineWithUnused())
    step(one, 1.0)
    assert "No gradient reaches unused, so training does not change it." in caplog.text
    one.save(tmp_path)
    other.load(tmp_path)
    assert other.optimizer.state[other.module.unused]["step"] == 0
    assert [step(engine, 2.0).grad_norm for engine in (one, other)] == [2.0, 2.0]
    assert torch.equal(one.module.w, other.module.w)
    assert torch.equal(other.module.unused, torch.ones(2))
    assert len(caplog.records) == 1


def test_an_engine_before_its_first_step_has_no_moments(tmp_path):
    fresh, trained = make_engine(), make_engine()
    fresh.save(tmp_path)
    make_actor(trained).update(trajectories(4))
    trained.load(tmp_path)
    assert (trained.steps, len(trained.optimizer.state)) == (0, 0)


def test_tied_weights_are_saved_once_and_loaded_into_both(tmp_path):
    class Tied(TinyPolicy):
        def __init__(self, seed):
            super().__init__(seed=seed)
            self.blocks[1].weight = self.blocks[0].weight

    one, other = make_engine(module=Tied(0)), make_engine(module=Tied(1))
    one.save(tmp_path)
    other.load(tmp_path)
    assert torch.equal(other.module.blocks[1].weight, one.module.blocks[0].weight)


def test_weights_of_another_model_are_refused_with_names_and_shapes(tmp_path):
    make_engine().save(tmp_path)
    other = make_engine(module=TinyPolicy(width=4))
    before = weights(other)
    with pytest.raises(
        CheckpointError,
        match=r"shards belongs to another model.*shape \[6\], expected \[4\]",
    ):
        other.load(tmp_path)
    assert largest_difference(before, weights(other)) == 0.0


@pytest.mark.parametrize("name", ["shards/.metadata", "shards/__0_0.distcp"])
def test_a_truncated_file_of_shards_is_refused(tmp_path, name):
    engine = make_engine()
    engine.save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"shards.* cannot be read"):
        engine.load(tmp_path)


def test_an_engines_folder_holds_the_whole_weights_and_the_shards(tmp_path):
    engine = make_engine()
    make_actor(engine).update(trajectories(4))
    engine.save(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "model.safetensors",
        "shards/.metadata",
        "shards/__0_0.distcp",
    ]
    exported = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(exported[name], tensor) for name, tensor in weights(engine).items())


@pytest.mark.parametrize("updates", [0, 2])
def test_an_engine_loads_the_files_of_earlier_versions(tmp_path, updates):
    """Earlier versions kept whole moments in optimizer.safetensors."""
    old, new = make_engine(), make_engine(module=TinyPolicy(seed=5))
    for seed in range(updates):
        make_actor(old).update(trajectories(4, seed=seed))
    write_old_files(old, tmp_path)
    new.load(tmp_path)
    for engine in (old, new):
        make_actor(engine).update(trajectories(4, seed=9))
    assert new.steps == updates + 1
    assert largest_difference(weights(old), weights(new)) == 0.0


def test_a_missing_weight_file_is_refused_with_a_list_of_the_others(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        CheckpointError, match=r"model.safetensors does not exist.*Found in .*: notes.txt"
    ):
        make_engine().load(tmp_path)


def test_a_micro_batch_of_no_rows_is_refused():
    with pytest.raises(ConfigError, match="micro_batch_size=0"):
        make_engine(micro_batch_size=0)


@pytest.mark.parametrize("cut", [None, lambda batch: chunk_windows(batch, chunks=1)])
def test_work_of_the_rows_that_pass_adds_up(cut):
    def chunks(module, micro_batch):
        return float(micro_batch["response_mask"].unflatten(1, (4, -1)).any(-1).sum())

    engine = make_engine(work=chunks, cut=cut, micro_batch_size=1)
    make_actor(engine).update(trajectories(3))  # of 1, 3 and 4 executed chunks
    assert engine.flops == 8.0
