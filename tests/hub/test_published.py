"""`AutoModel` on published folders, only after it was asked for."""

import subprocess
import sys

import dspark_hf


SCRIPT = """
import sys, torch, dspark_hf
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
root = sys.argv[1]
for again in range(2):
    dspark_hf.register_published()
for name in ("qwen3-rnn", "gemma4-vanilla"):
    opened = AutoModel.from_pretrained(f"{root}/{name}/drafter")
    assert type(opened) is dspark_hf.DSparkDrafter, type(opened)
    assert type(AutoConfig.from_pretrained(f"{root}/{name}/drafter")) is dspark_hf.DSparkConfig
    target = AutoModelForCausalLM.from_pretrained(f"{root}/{name}/target")
    assert type(target).__module__.startswith("transformers."), type(target)
target = AutoModelForCausalLM.from_pretrained(f"{root}/qwen3-vanilla/target")
opened = AutoModel.from_pretrained(f"{root}/speculators-dspark-rnn-pruned/drafter", target=target, dtype=torch.bfloat16)
assert type(opened) is dspark_hf.DSparkDrafter and opened.dtype == torch.bfloat16
config, unused = AutoConfig.from_pretrained(f"{root}/qwen3-rnn/drafter", return_unused_kwargs=True, strange=1)
assert unused == {"strange": 1}, unused
try:
    AutoConfig.from_pretrained("./nowhere")
except (OSError, ValueError):
    print("done")
"""


def test_published_folders_open_through_the_auto_classes_after_registration(golden):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(golden)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "done"


def test_the_function_is_part_of_the_public_names():
    assert "register_published" in dspark_hf.__all__
    assert callable(dspark_hf.register_published)
