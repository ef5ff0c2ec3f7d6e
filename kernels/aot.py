"""Compiles every kernel variant for real GPUs on a machine that has none, and reports registers, stack and shared memory.

    python kernels/aot.py --targets sm80 sm90 sm100 gfx942 --output benchmarks/results/kernel_resources.json

It must run in a process where TRITON_INTERPRET is not set, because Triton decides at import whether to interpret or to
compile. It proves that kernels compile and what they need, not that they are right or fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


HERE = pathlib.Path(__file__).parent
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.10 changes the default; the table should not


def load_package(name: str):
    """Import a kernel package from its folder, as the `kernels` loader does, without installing anything."""
    if name not in sys.modules:
        root = HERE / name.replace("_", "-") / "torch-ext" / name
        spec = importlib.util.spec_from_file_location(
            name, root / "__init__.py", submodule_search_locations=[str(root)]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def targets() -> dict:
    from triton.backends.compiler import GPUTarget

    nvidia = {f"sm{number}": GPUTarget("cuda", number, 32) for number in (80, 90, 100)}
    return {**nvidia, "gfx942": GPUTarget("hip", "gfx942", 64)}


def compile_variant(variant, target):
    """The compiled kernel of one variant.

    Integers and pointers are declared divisible by 16 where a launch would find them so: without it the loads are scalar
    and the tile kernel spills.
    """
    import triton
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    signature = {name: "constexpr" if name in variant.constants else variant.types[name] for name in names}
    aligned = [
        index
        for index, name in enumerate(names)
        if signature[name].startswith("*") or (name in variant.divisible and name not in variant.constants)
    ]
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs={name: variant.constants[name] for name in names if name in variant.constants},
        attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
    )
    return triton.compile(source, target=target, options={"num_warps": variant.num_warps})


def resources(compiled) -> dict:
    """Registers, stack and shared memory as the vendor's tools report them."""
    report = {"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps}
    if "cubin" in compiled.asm:
        import triton

        tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            text = subprocess.run(
                [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        found = re.search(r"REG:(\d+) STACK:(\d+)", text)
        report.update(registers=int(found[1]), stack=int(found[2]))
        ptx = compiled.asm["ptx"]
        report["matrix_instructions"] = len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)", ptx))
        report["vector_loads"] = len(re.findall(r"ld\.global[^;]*\.v[24]", ptx))
    else:
        assembly = compiled.asm["amdgcn"]
        report["registers"] = int(re.search(r"\.vgpr_count:\s*(\d+)", assembly)[1])
        report["spilled"] = int(re.search(r"\.vgpr_spill_count:\s*(\d+)", assembly)[1])
    return report


def table(names: list[str], default_only: bool = False) -> dict:
    """The names of the default variants, and {target: {variant: resources}} for the named targets."""
    for package in ("dspark_markov", "dspark_schedule", "dspark_verify", "dspark_linear_loss"):
        load_package(package)
    sys.path.insert(0, str(HERE))
    from aot_variants import variants

    chosen = [variant for variant in variants() if variant.default or not default_only]
    known = targets()
    uses = {name: {v.name: resources(compile_variant(v, known[name])) for v in chosen} for name in names}
    return {"default": [variant.name for variant in chosen if variant.default], "resources": uses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=["sm90"], choices=["sm80", "sm90", "sm100", "gfx942"])
    parser.add_argument("--default-only", action="store_true", help="only the variants that a plain call launches")
    parser.add_argument("--output", type=pathlib.Path, help="write the table here instead of to standard output")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("unset TRITON_INTERPRET: a process either interprets or compiles")
    import triton

    result = {"triton": triton.__version__, **table(options.targets, options.default_only)}
    text = json.dumps(result, indent=1) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)


if __name__ == "__main__":
    main()
