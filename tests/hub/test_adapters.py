"""LoRA on a drafter: attached, trained, saved, pushed, loaded, merged; and never with the temperatures of its base."""

import json

import pytest
import torch
from huggingface_hub import HfApi
from peft import LoraConfig, get_peft_model
from transformers import AutoModel

from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.hub.adapters import drafter_of, load_adapter, merge_adapter, save_adapter
from dspark_hf.models import DSparkDrafter


# peft 0.21 asks transformers for an attribute by its old name
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

BASE = {"greedy": {"temperatures": [1.5] * 5}}
OWN = {"greedy": {"temperatures": [0.9] * 5}}


@pytest.fixture
def base(tmp_path):
    """A calibrated drafter in a folder."""
    drafter = tiny_drafter(tiny_target("qwen3"), bigram=False)
    drafter.config.confidence_calibration = BASE
    drafter.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base):
    drafter = DSparkDrafter.from_pretrained(base)
    return get_peft_model(drafter, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "fc", "markov_w2"]))


def drafted(drafter):
    return drafter.draft_block(torch.tensor([5]), torch.linspace(-1, 1, 6 * 96).view(1, 6, 96)).logits


def train_a_step(model):
    drafter = drafter_of(model)
    hidden = model(drafter.make_block(torch.tensor([5, 6])), torch.randn(2, 4, 96))
    logits, confidence = drafter.teacher_forced(hidden, torch.randint(0, 60, (2, 5)))
    (logits.logsumexp(-1).mean() + confidence.mean()).backward()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert weights
    assert all(weight.grad is not None for weight in weights)
    with torch.no_grad():
        for weight in weights:
            weight.add_(torch.randn_like(weight), alpha=0.2)
    return model.eval()


def test_an_adapter_trains_saves_loads_and_merges(base, tmp_path):
    model = train_a_step(adapted(base))
    expected = drafted(drafter_of(model))
    save_adapter(model, tmp_path / "adapter")

    reloaded = load_adapter(DSparkDrafter.from_pretrained(base), tmp_path / "adapter")
    by_name = DSparkDrafter.from_pretrained(tmp_path / "adapter")
    by_auto = AutoModel.from_pretrained(tmp_path / "adapter")
    merged = merge_adapter(reloaded)
    merged.save_pretrained(tmp_path / "merged")

    plain = drafted(DSparkDrafter.from_pretrained(base))
    assert float((expected - plain).abs().max()) > 1e-2
    for drafter in (by_name, by_auto, merged, DSparkDrafter.from_pretrained(tmp_path / "merged")):
        torch.testing.assert_close(drafted(drafter), expected, atol=1e-4, rtol=1e-4)
    assert type(merged) is DSparkDrafter
    size = sum(path.stat().st_size for path in (tmp_path / "adapter").glob("*.safetensors"))
    assert size < 0.25 * (base / "model.safetensors").stat().st_size


def test_temperatures_of_the_base_are_not_trusted_for_an_adapter(base, tmp_path):
    model = train_a_step(adapted(base))
    assert drafter_of(model).config.confidence_calibration is None
    save_adapter(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "dspark_calibration.json").exists()
    for opened in (
        DSparkDrafter.from_pretrained(tmp_path / "adapter"),
        AutoModel.from_pretrained(tmp_path / "adapter"),
        drafter_of(load_adapter(DSparkDrafter.from_pretrained(base), tmp_path / "adapter")),
        merge_adapter(load_adapter(DSparkDrafter.from_pretrained(base), tmp_path / "adapter")),
        model.merge_and_unload(),
    ):
        assert opened.config.confidence_calibration is None
    assert DSparkDrafter.from_pretrained(base).config.confidence_calibration == BASE


def test_temperatures_fitted_for_the_adapter_travel_with_it(base, tmp_path):
    model = train_a_step(adapted(base))
    drafter_of(model).config.confidence_calibration = OWN
    save_adapter(model, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "dspark_calibration.json").read_text()) == {
        "confidence_calibration": OWN
    }

    opened = DSparkDrafter.from_pretrained(tmp_path / "adapter")
    merged = merge_adapter(load_adapter(DSparkDrafter.from_pretrained(base), tmp_path / "adapter"))
    merged.save_pretrained(tmp_path / "merged")
    assert opened.config.confidence_calibration == OWN
    assert DSparkDrafter.from_pretrained(tmp_path / "merged").config.confidence_calibration == OWN

    drafter_of(model).config.confidence_calibration = None
    save_adapter(model, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "dspark_calibration.json").exists()


def test_an_adapter_in_a_repository_finds_its_base_there(hub, base, tmp_path):
    api = HfApi()
    api.create_repo("tester/base")
    api.upload_folder(repo_id="tester/base", folder_path=base)
    model = train_a_step(adapted("tester/base"))
    drafter_of(model).config.confidence_calibration = OWN
    save_adapter(model, tmp_path / "adapter")
    api.create_repo("tester/adapter")
    api.upload_folder(repo_id="tester/adapter", folder_path=tmp_path / "adapter")

    opened = DSparkDrafter.from_pretrained("tester/adapter")
    torch.testing.assert_close(drafted(opened), drafted(drafter_of(model)), atol=1e-4, rtol=1e-4)
    assert opened.config.confidence_calibration == OWN


def test_an_adapter_without_a_base_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="names no base_model_name_or_path"):
        DSparkDrafter.from_pretrained(tmp_path)


def test_another_adapted_model_is_refused():
    target = get_peft_model(tiny_target("llama"), LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="expected an adapted DSparkDrafter"):
        drafter_of(target)
