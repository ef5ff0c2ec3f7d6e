"""Names of sampling regimes, and which calibration serves a call."""

import logging

import pytest
from transformers import BitsAndBytesConfig, Qwen3Config

from dspark_hf.calibration import find_calibration, quantization_name, regime_key


TABLE = {
    "temperature=0": {"temperatures": [0.5, 0.5], "biases": [1.0, 1.0]},
    "temperature=1": {"temperatures": [2.0, 2.0]},
    "temperature=0.7,top_p=0.9": {"temperatures": [3.0, 3.0]},
    "temperature=1,quantization=torchao": {"temperatures": [4.0, 4.0]},
    "temperature=1,thinking=on": {"temperatures": [5.0, 5.0]},
}


@pytest.fixture
def warnings(caplog):
    logger = logging.getLogger("dspark_hf.calibration.regimes")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_keys_name_only_what_departs_from_the_default():
    assert regime_key() == "temperature=1"
    assert regime_key(temperature=0.0, top_p=0.9) == "temperature=0"
    assert regime_key(temperature=0.7, top_p=0.95, thinking=False, quantization="torchao") == (
        "temperature=0.7,top_p=0.95,thinking=off,quantization=torchao"
    )


def test_the_own_regime_is_used_without_a_word(warnings):
    found = find_calibration(TABLE, num_slots=2, temperature=0.0)
    assert (found.temperatures, found.biases, found.regime) == ([0.5, 0.5], [1.0, 1.0], "temperature=0")
    assert warnings.text == ""


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        ({"temperature": 0.8, "top_p": 0.9}, "temperature=0.7,top_p=0.9"),
        ({"temperature": 1.2}, "temperature=1"),
        ({"temperature": 0.7, "quantization": "torchao"}, "temperature=1,quantization=torchao"),
        ({"temperature": 0.6, "thinking": True}, "temperature=1,thinking=on"),
        ({"temperature": 0.0, "thinking": True}, "temperature=0"),
    ],
)
def test_the_nearest_regime_that_decodes_alike_is_used_with_a_warning(warnings, call, nearest):
    assert find_calibration(TABLE, num_slots=2, **call).regime == nearest
    assert f"the nearest, {nearest}, is used" in warnings.text


def test_greedy_never_borrows_from_sampling(warnings):
    found = find_calibration({"temperature=1": TABLE["temperature=1"]}, num_slots=2, temperature=0.0)
    assert (found.temperatures, found.regime) == ([1.0, 1.0], None)
    assert "raw confidences are used" in warnings.text


def test_without_any_calibration_it_is_the_identity_without_a_word(warnings):
    assert find_calibration(None, num_slots=3).temperatures == [1.0] * 3
    assert warnings.text == ""


def test_a_calibration_of_another_number_of_slots_is_refused():
    with pytest.raises(ValueError, match="holds 2 temperatures, the drafter has 7 slots"):
        find_calibration(TABLE, num_slots=7, temperature=0.0)


def test_the_quantisation_of_a_target_is_named_by_its_method():
    assert quantization_name(Qwen3Config()) is None
    assert quantization_name(Qwen3Config(quantization_config={"quant_method": "gptq", "bits": 4})) == "gptq"
    assert quantization_name(Qwen3Config(quantization_config=BitsAndBytesConfig(load_in_8bit=True))) == "bitsandbytes"
