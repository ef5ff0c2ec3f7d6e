"""The trainer: denominators of whole steps, frozen shared weights, bf16 autocast, averages, validation and resume."""

import json
import random
import time

import pytest
import torch
from training_runs import frozen, kill_at, recipe_of, rows_of, run
from transformers import TrainerCallback

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.trainer import DSparkTrainer


class KeepGradients(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.steps.append(
            {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        )


@pytest.fixture
def gradients(monkeypatch):
    """Gradients of every optimizer step of the next run."""
    keep = KeepGradients()
    init = DSparkTrainer.__init__

    def with_callback(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(keep)

    monkeypatch.setattr(DSparkTrainer, "__init__", with_callback)
    return keep


def assert_equal_gradients(one, two, tolerance=1e-6):
    assert set(one) == set(two)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=tolerance, rtol=0, msg=name)


def weights_of(result):
    return {name: value for name, value in result.drafter.named_parameters() if value.requires_grad}


def test_gradients_do_not_depend_on_how_a_step_is_cut_into_micro_batches(gradients, tmp_path):
    for rows, accumulation in ((4, 1), (1, 4), (2, 2)):
        options = {"rows_per_batch": rows, "gradient_accumulation_steps": accumulation, "max_steps": 1}
        run(tmp_path / f"{rows}x{accumulation}", **options)
    whole, *cut = gradients.steps
    assert max(value.abs().max() for value in whole.values()) > 1e-3
    for other in cut:
        assert_equal_gradients(whole, other)


def test_the_learning_rate_that_was_used_warms_up_to_its_peak_and_no_further(tmp_path):
    used = []
    run(tmp_path, max_steps=30, logging_steps=1, on_progress=lambda progress: used.append(progress.logs))
    rates = [logs["learning_rate"] for logs in used[1:]]
    assert max(rates) == pytest.approx(1e-3)
    assert rates.index(max(rates)) in (13, 14, 15)
    assert rates[-1] < 1e-4


def test_frozen_weights_stay_and_share_memory_while_everything_else_moves(tmp_path):
    target = tiny_target("qwen3")
    drafter = frozen(tiny_drafter(target, bigram=False))
    drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
    drafter.lm_head.weight.data.copy_(target.get_output_embeddings().weight)
    assert drafter.tie_to(target) == ["embed_tokens.weight", "lm_head.weight"]
    before = {name: value.detach().clone() for name, value in drafter.named_parameters()}
    embedding = target.get_input_embeddings().weight.clone()
    result = run(tmp_path, target=target, drafter=drafter)
    for name, value in result.drafter.named_parameters():
        assert torch.equal(value, before[name]) is (name in ("embed_tokens.weight", "lm_head.weight")), name
    assert torch.equal(target.get_input_embeddings().weight, embedding)
    assert result.drafter.embed_tokens.weight.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    assert result.drafter.embed_tokens.weight.grad is None


def test_norms_leave_one_under_bf16_autocast_and_parameters_stay_float32(tmp_path):
    target = tiny_target("qwen3")
    drafter = frozen(tiny_drafter(target, bigram=False))
    norms = [name for name, _ in drafter.named_parameters() if "norm" in name]
    with torch.no_grad():
        for name in norms:
            drafter.get_parameter(name).fill_(1.0)
    result = run(tmp_path, target=target, drafter=drafter, max_steps=100, bf16=True)
    for name in norms:
        weight = result.drafter.get_parameter(name)
        assert weight.dtype == torch.float32
        assert (weight - 1).abs().max() > 1e-3, name


def test_no_weight_decay_on_norms_biases_and_heads(tmp_path, monkeypatch):
    groups = {}
    create = DSparkTrainer.create_optimizer

    def record(self, model=None):
        optimizer = create(self, model)
        names = {id(value): name for name, value in self.trained.items()}
        for group in optimizer.param_groups:
            groups.update({names[id(value)]: group["weight_decay"] for value in group["params"]})
        return optimizer

    monkeypatch.setattr(DSparkTrainer, "create_optimizer", record)
    run(tmp_path, max_steps=1, weight_decay=0.1)
    assert groups["drafter.layers.0.mlp.up_proj.weight"] == groups["drafter.fc.weight"] == 0.1
    for name, decay in groups.items():
        if "norm" in name or "head" in name or name.endswith("bias"):
            assert decay == 0.0, name
    assert "drafter.lm_head.weight" not in groups


def test_logs_are_plain_floats_with_every_term(tmp_path):
    seen = []
    run(tmp_path, logging_steps=2, on_progress=lambda progress: seen.append(progress))
    assert [progress.step for progress in seen] == [1, 2, 3, 4]
    assert seen[-1].fraction == 1.0
    logs = seen[-1].logs
    for name in ("loss", "loss_ce", "loss_l1", "loss_confidence", "tau", "acceptance_1", "acceptance_5", "anchors"):
        assert type(logs[name]) is float, name
    assert 0.1 * logs["loss_ce"] + 0.9 * logs["loss_l1"] + logs["loss_confidence"] == pytest.approx(
        logs["loss"], abs=0.05
    )
    assert {"confidence_bias", "tokens_per_second", "grad_norm", "epoch"} <= set(logs)


def test_validation_keeps_the_best_weights_and_reports_the_length_of_real_drafts(tmp_path):
    evals = rows_of((30, 20), seed=1, name="e")
    result = run(tmp_path, eval_rows=evals, eval_steps=1, eval_anchors_per_row=3)
    best = json.loads((tmp_path / "best.json").read_text())
    assert result.metrics["best_accepted_length"] == best["accepted_length"] >= 1.0
    assert 1.0 <= result.metrics["eval_tau"] <= 6.0
    history = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    scores = [entry["eval_accepted_length"] for entry in history if "eval_accepted_length" in entry]
    assert len(scores) == 4
    assert max(scores) == best["accepted_length"]


def test_a_drafter_that_knows_the_target_is_accepted_for_longer_in_validation(tmp_path):
    target = tiny_target("qwen3")
    prompt = torch.tensor([[5, 6, 7]])
    ids = target.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)[0].tolist()
    row = rows_of((40,))[0]
    own = type(row)(id="own", prompt_ids=ids[:3], completion_ids=ids[3:])
    lengths = {}
    for bigram in (False, True):
        drafter = frozen(tiny_drafter(target, bigram=bigram))
        options = {"max_steps": 1, "learning_rate": 0.0, "eval_steps": 1}
        result = run(tmp_path / str(bigram), target=target, drafter=drafter, eval_rows=[own], **options)
        lengths[bigram] = result.metrics["eval_accepted_length"]
    assert lengths[True] > lengths[False] + 1


def test_a_run_by_the_clock_stops_and_says_so(tmp_path):
    seen = []
    run(tmp_path, max_steps=None, max_minutes=0.01, on_progress=lambda progress: seen.append(progress))
    assert seen[-1].total_steps is None
    assert seen[-1].fraction == 1.0
    assert (tmp_path / f"checkpoint-{seen[-1].step}").is_dir()


def test_a_finished_run_is_returned_and_not_repeated(tmp_path):
    first = run(tmp_path)
    steps = []
    again = run(tmp_path, on_progress=lambda progress: steps.append(progress.step))
    assert steps == []
    for name, value in weights_of(first).items():
        assert torch.equal(value, weights_of(again)[name])


class Stop(Exception):
    """Ends a run between two steps."""


def interrupted(folder, step, **options):
    def stop(progress):
        if progress.step == step:
            raise Stop

    with pytest.raises(Stop):
        run(folder, on_progress=stop, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"ema_decay": 0.9}, {"optimizer": "muon"}, {"ce_labels": "sample", "gradient_accumulation_steps": 2}],
    ids=str,
)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, options):
    options |= {"max_steps": 8, "save_steps": 2, "eval_rows": rows_of((20,), seed=1, name="e"), "eval_steps": 3}
    whole = run(tmp_path / "whole", **options)
    interrupted(tmp_path / "cut", 5, **options)
    assert sorted(path.name for path in (tmp_path / "cut").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    resumed = run(tmp_path / "cut", **options)
    for name, value in weights_of(whole).items():
        assert torch.equal(value, weights_of(resumed)[name]), name


def test_a_checkpoint_that_was_not_written_to_its_end_is_dropped(tmp_path):
    options = {"max_steps": 6, "save_steps": 2}
    whole = run(tmp_path / "whole", **options)
    interrupted(tmp_path / "cut", 5, **options)
    state = tmp_path / "cut" / "checkpoint-4" / "trainer_state.json"
    state.write_text(state.read_text()[:50])
    resumed = run(tmp_path / "cut", **options)
    for name, value in weights_of(whole).items():
        assert torch.equal(value, weights_of(resumed)[name]), name


def test_killed_at_random_moments_a_run_ends_with_the_same_bits(tmp_path):
    """SIGKILL in a forked process; ten times in all, over five runs that are each killed twice."""
    options = {"max_steps": 12, "save_steps": 1, "save_total_limit": 1}
    started = time.monotonic()
    whole = run(tmp_path / "whole", **options)
    duration = time.monotonic() - started
    chance = random.Random(0)
    kills = 0
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        for _ in range(2):
            kills += kill_at(duration * chance.uniform(0.1, 0.6), lambda folder=folder: run(folder, **options))
        resumed = run(folder, **options)
        for name, value in weights_of(whole).items():
            assert torch.equal(value, weights_of(resumed)[name]), name
    assert kills >= 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 2e-3}, "train.learning_rate was 0.001, now 0.002"),
        ({"rows": rows_of(seed=3)}, "rows was "),
        ({"target": tiny_target("qwen3", seed=4)}, "target.weights was "),
        ({"mask_token_id": 62}, "mask_token_id was 63, now 62"),
        ({"target_layer_ids": [-1, 0, 1]}, r"target_layer_ids was \[-1, 0, 2\]"),
        ({"block_size": 4}, "block_size was 5, now 4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_of_other_settings_is_not_resumed(tmp_path, change, message):
    interrupted(tmp_path, 2, save_steps=1)
    layout = {
        name: change.pop(name) for name in list(change) if name in ("mask_token_id", "target_layer_ids", "block_size")
    }
    if layout:
        change = {"drafter": frozen(tiny_drafter(tiny_target("qwen3"), bigram=False, **layout))}
    with pytest.raises(ValueError, match=f"cannot be resumed: .*{message}"):
        run(tmp_path, **change)


def test_logging_and_saving_may_change_between_start_and_resume(tmp_path):
    interrupted(tmp_path, 2, save_steps=1)
    assert run(tmp_path, save_steps=3, logging_steps=1).steps == 4


def test_cached_features_give_the_same_gradients_as_online_ones(gradients, tmp_path):
    for kind in ("online", "cache"):
        recipe = recipe_of(max_steps=1)
        recipe.data.features, recipe.data.cache_dtype = kind, "float32"
        run(tmp_path / kind, recipe=recipe)
    recipe.data.cache_dtype = "bfloat16"
    run(tmp_path / "bf16", recipe=recipe)
    online, cached, rounded = gradients.steps
    scale = max(value.abs().max().item() for value in online.values())
    assert_equal_gradients(online, cached, 1e-5 * scale)
    assert_equal_gradients(online, rounded, 0.05 * scale)


def test_a_pruned_drafter_learns_the_same_from_the_cache_as_online(gradients, tmp_path):
    target = tiny_target("qwen3")
    for kind in ("online", "cache"):
        recipe = recipe_of(max_steps=1)
        recipe.data.features, recipe.data.cache_dtype = kind, "float32"
        drafter = frozen(tiny_drafter(target, bigram=False, draft_vocab_size=20))
        drafter.set_draft_vocabulary(torch.arange(4, 64, 3))
        run(tmp_path / kind, recipe=recipe, target=target, drafter=drafter)
    online, cached = gradients.steps
    assert_equal_gradients(online, cached, 1e-5 * max(value.abs().max().item() for value in online.values()))


def test_cross_entropy_alone_trains_and_leaves_the_confidence_head_out(tmp_path):
    result = run(tmp_path, l1_weight=0.0, confidence_weight=0.0, ce_weight=1.0)
    assert not any("confidence_head" in name for name in weights_of(result))
    assert result.metrics["loss_ce"] > 0


def test_rows_too_long_for_the_limit_are_cut_and_the_run_stays_finite(tmp_path):
    rows = [*rows_of((40, 30)), type(rows_of()[0])(id="long", prompt_ids=[5] * 40, completion_ids=[6] * 9)]
    result = run(tmp_path, rows=rows, max_row_tokens=16)
    assert all(torch.isfinite(value).all() for value in weights_of(result).values())
