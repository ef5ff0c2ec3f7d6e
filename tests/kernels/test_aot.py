"""Every kernel variant compiles for real GPUs without one, and the default variants do not spill on sm90.

Compiling needs a process of its own: the kernels' tests interpret, and a process does one or the other.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "results" / "kernel_resources.json"
TARGETS = ["sm80", "sm90", "sm100", "gfx942"]
# One row of threads of an SM holds 65536 registers: above 168 of them only three warps of four programs fit.
MOST_REGISTERS, MOST_SHARED = 200, 100 * 1024


def compile_table(tmp_path, targets, *flags) -> dict:
    output = tmp_path / "table.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        str(ROOT / "kernels" / "aot.py"),
        "--targets",
        *targets,
        "--output",
        str(output),
        *flags,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())["resources"]


def check_sm90(resources: dict) -> None:
    for name, use in resources.items():
        assert use["stack"] == 0, name
        assert use["registers"] <= MOST_REGISTERS, name
        assert use["shared"] <= MOST_SHARED, name
    tile = resources["markov.tile bf16 rows=64 store=True"]
    assert tile["matrix_instructions"] > 0
    assert tile["vector_loads"] > 0


def test_default_variants_compile_for_sm90_and_gfx942_without_spilling(tmp_path):
    table = compile_table(tmp_path, ["sm90", "gfx942"], "--default-only")
    check_sm90(table["sm90"])
    assert table["sm90"].keys() == table["gfx942"].keys()
    assert all(use["spilled"] == 0 for use in table["gfx942"].values())


@pytest.mark.slow
def test_every_variant_compiles_for_every_target_as_recorded(tmp_path):
    table = compile_table(tmp_path, TARGETS)
    recorded = json.loads(RECORDED.read_text())["resources"]
    assert {target: sorted(uses) for target, uses in table.items()} == {
        target: sorted(uses) for target, uses in recorded.items()
    }


def test_the_recorded_table_covers_every_target_and_shows_no_spill_of_defaults_on_sm90():
    recorded = json.loads(RECORDED.read_text())
    assert sorted(recorded["resources"]) == sorted(TARGETS)
    defaults = set(recorded["default"])
    check_sm90({name: use for name, use in recorded["resources"]["sm90"].items() if name in defaults})
