"""Adapting a published drafter to a fine-tuned target: in full or by LoRA, and smaller than one in twenty."""

import pytest
import torch
from training_runs import recipe_of, rows_of, run

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.training.adapt import add_adapter, load_start
from dspark_hf.training.rows import Row
from dspark_hf.training.train import start_drafter


# peft reads a property that transformers has renamed
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


def published(folder, **overrides):
    target = tiny_target("qwen3")
    drafter = tiny_drafter(target, bigram=False, **overrides)
    drafter.config.confidence_calibration = {"T=1": {"temperatures": [2.0] * 5}}
    drafter.save_pretrained(folder)
    return target


def fine_tuned():
    target = tiny_target("qwen3", seed=0)
    for name, weight in target.named_parameters():
        if "mlp" in name:
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return target


def adapted(tmp_path, **drafter):
    recipe = recipe_of(max_steps=4)
    recipe.drafter.start_from = str(tmp_path / "published")
    for name, value in drafter.items():
        setattr(recipe.drafter, name, value)
    return recipe


def test_a_start_keeps_the_published_weights_and_drops_its_temperatures(tmp_path):
    published(tmp_path / "published")
    drafter = start_drafter(fine_tuned(), None, rows_of(), adapted(tmp_path))
    stored = tiny_drafter(tiny_target("qwen3"), bigram=False).state_dict()
    for name, value in drafter.state_dict().items():
        assert torch.equal(value, stored[name]), name
    assert drafter.config.confidence_calibration is None
    assert not drafter.lm_head.weight.requires_grad


def test_a_full_adaptation_trains_every_weight_but_the_shared_ones(tmp_path):
    published(tmp_path / "published")
    target, recipe = fine_tuned(), adapted(tmp_path)
    drafter = start_drafter(target, None, rows_of(), recipe)
    before = {name: value.detach().clone() for name, value in drafter.named_parameters()}
    evals = rows_of((30, 20), seed=1, name="e")
    result = run(tmp_path / "run", target=target, drafter=drafter, recipe=recipe, eval_rows=evals)
    assert result.metrics["accepted_length_before"] >= 1.0
    for name, value in result.drafter.named_parameters():
        assert torch.equal(value, before[name]) is (name in ("embed_tokens.weight", "lm_head.weight")), name


def test_an_adapter_is_trained_saved_alone_resumed_and_loads_back(tmp_path):
    from peft import PeftModel

    published(tmp_path / "published")
    target, recipe = fine_tuned(), adapted(tmp_path, lora_rank=2)
    drafter = start_drafter(target, None, rows_of(), recipe)
    result = run(tmp_path / "run", target=target, drafter=drafter, recipe=recipe)
    trained = [name for name, value in result.drafter.named_parameters() if value.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    result.drafter.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()

    again = PeftModel.from_pretrained(load_start(str(tmp_path / "published"), target), tmp_path / "adapter")
    block = (torch.tensor([5]), torch.randn(1, 4, 96, generator=torch.Generator().manual_seed(0)))
    one, two = again.eval().draft_block(*block), result.drafter.draft_block(*block)
    torch.testing.assert_close(one.logits, two.logits)
    base = load_start(str(tmp_path / "published"), target).eval().draft_block(*block)
    assert (base.logits - two.logits).abs().max() > 1e-4


def test_an_adapter_is_below_a_twentieth_of_a_drafter_of_usual_shape():
    target = tiny_target("qwen3", vocab_size=2048, hidden_size=128, intermediate_size=512)
    sizes = {"intermediate_size": 512, "num_attention_heads": 8, "head_dim": 16, "markov_rank": 64, "mask_token_id": 9}
    drafter = add_adapter(tiny_drafter(target, bigram=False, **sizes), rank=4)
    total = sum(value.numel() for value in drafter.get_base_model().parameters())
    adapter = sum(value.numel() for value in drafter.parameters() if value.requires_grad)
    assert adapter < 0.05 * (total - adapter)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 8], ids=["full", "lora"])
def test_adapting_to_a_fine_tuned_target_lengthens_what_is_accepted(tmp_path, rank):
    # without a Markov head everything has to be learned by the body, where the adapters are
    published(tmp_path / "published", markov_rank=0, confidence_head_with_markov=False)
    target = fine_tuned()
    recipe = adapted(tmp_path, lora_rank=rank)
    options = {"max_steps": 200, "learning_rate": 1e-2, "anchors_per_row": 16, "rows_per_batch": 8, "eval_steps": 50}
    for name, value in options.items():
        setattr(recipe.train, name, value)
    rows = []
    for index in range(48):
        ids = torch.tensor([[4 + index % 50, 5 + index // 2, 6 + index // 3]])
        torch.manual_seed(index)
        answer = target.generate(ids, max_new_tokens=40, do_sample=True, top_k=0, temperature=0.7, pad_token_id=0)[0]
        rows.append(Row(id=f"g{index}", prompt_ids=ids[0].tolist(), completion_ids=answer[3:].tolist()))
    drafter = start_drafter(target, None, rows, recipe)
    result = run(tmp_path / "run", target=target, drafter=drafter, recipe=recipe, rows=rows[8:], eval_rows=rows[:8])
    before, after = result.metrics["accepted_length_before"], result.metrics["best_accepted_length"]
    assert after > 1.1 * before, (before, after)
