"""The kernel packages keep the Hub's layout: loadable from disk, relative imports, 64-bit addresses, shared files equal."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
NAMES = ["dspark-markov", "dspark-schedule", "dspark-verify", "dspark-linear-loss"]
SOURCES = sorted(KERNELS.glob("dspark-*/torch-ext/*/*.py"))


def package(name: str) -> Path:
    return KERNELS / name / "torch-ext" / name.replace("-", "_")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_the_parts_of_a_hub_kernel(name):
    for part in ("build.toml", "CARD.md", "tests", "benchmarks/benchmark.py"):
        assert (KERNELS / name / part).exists(), part
    for part in ("__init__.py", "layers.py", "reference.py", "dispatch.py"):
        assert (package(name) / part).exists(), part
    settings = (KERNELS / name / "build.toml").read_text()
    assert f'name = "{name}"' in settings
    assert "[torch-noarch]" in settings


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_sources_import_only_each_other_torch_triton_and_the_standard_library(path):
    allowed = set(sys.stdlib_module_names) | {"torch", "triton"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] in allowed
        elif isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_program_ids_are_64_bit_before_any_stride_multiplies_them(path):
    lines = [line for line in path.read_text().splitlines() if "tl.program_id(" in line]
    assert all(re.search(r"tl\.program_id\(\d\)\.to\(tl\.int64\)", line) for line in lines), lines


def test_the_offset_that_the_rule_protects_does_not_fit_32_bits():
    assert 20_000 * 151_936 > 2**31 - 1


@pytest.mark.parametrize("shared", ["sampling.py", "random_triton.py"])
def test_drafting_and_verification_share_their_random_numbers_to_the_byte(shared):
    assert (package("dspark-markov") / shared).read_bytes() == (package("dspark-verify") / shared).read_bytes()


def test_importing_the_packages_imports_no_triton():
    paths = [str(package(name).parent) for name in NAMES]
    names = ", ".join(package(name).name for name in NAMES)
    code = f"import sys; sys.path[:0] = {paths}; import {names}; print('triton' in sys.modules)"
    assert run_python(code) == "False"


def build(name: str, output: Path) -> Path:
    subprocess.run([sys.executable, str(KERNELS / "build_local.py"), name, "--output", str(output)], check=True)
    return output / name


def test_a_local_build_holds_the_package_and_its_metadata_for_every_backend(tmp_path):
    folder = build("dspark-verify", tmp_path)
    for backend in ("cpu", "cuda", "rocm"):
        variant = folder / "build" / f"torch-{backend}"
        metadata = json.loads((variant / "metadata.json").read_text())
        assert metadata["name"] == "dspark-verify"
        assert metadata["backend"] == {"type": backend}
        assert sorted(metadata["digest"]["files"]) == sorted(path.name for path in variant.glob("*.py"))


def test_a_local_build_is_a_working_package_of_its_own(tmp_path):
    variant = build("dspark-linear-loss", tmp_path) / "build" / "torch-cpu"
    code = f"""
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("elsewhere", r"{variant}/__init__.py", submodule_search_locations=[r"{variant}"])
module = sys.modules["elsewhere"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
layer = module.layers.DSparkLinearLoss()
head = torch.randn(50, 8)
print(layer(torch.randn(3, 8), None, torch.randn(3, 8), head, None, head, torch.tensor([1, 2, 3])).accept.shape)
"""
    assert run_python(code) == "torch.Size([3])"


def test_an_unknown_kernel_is_refused_with_the_known_names(tmp_path):
    spec = importlib.util.spec_from_file_location("build_local", KERNELS / "build_local.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="choose one of dspark-linear-loss"):
        module.build("dspark-attention", tmp_path)


INSTALLED = importlib.util.find_spec("kernels")
if (
    INSTALLED is not None and INSTALLED.origin is not None
):  # the extra `dspark-hf[kernels]`; not this repository's folder

    def test_the_kernels_library_loads_a_local_build_offline(tmp_path):
        folder = build("dspark-verify", tmp_path)
        code = f"""
import os, pathlib
os.environ["HF_HUB_OFFLINE"] = "1"
import kernels, torch
folder = pathlib.Path(r"{folder}")
module = kernels.get_local_kernel(folder, backend="cpu")
cu_seqlens = torch.tensor([0, 2], dtype=torch.int32)
module.verify_ragged(torch.randn(2, 50), torch.zeros(1, 1, dtype=torch.int64), cu_seqlens)
print(kernels.LocalLayerRepository(folder, layer_name="DSparkVerifyRagged").load().__name__)
"""
        assert run_python(code) == "DSparkVerifyRagged"
