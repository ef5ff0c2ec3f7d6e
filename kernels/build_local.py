"""Copies the kernel packages into build folders that the `kernels` library can load from disk.

    python kernels/build_local.py dspark-verify --output /some/folder
    >>> kernels.get_local_kernel(Path("/some/folder/dspark-verify"))

For trying a change; what is published is built by Hugging Face's kernel-builder. Every package is plain Python, so each
variant holds the same files. Knows nothing of the Hub.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path


HERE = Path(__file__).parent
VARIANTS = ("cpu", "cuda", "rocm")


def build(name: str, output: Path) -> Path:
    """Write `output/name/build/torch-{cpu,cuda,rocm}` and return `output/name`.

    Raises:
        ValueError: if there is no kernel of that name.
    """
    source = HERE / name / "torch-ext" / name.replace("-", "_")
    if not source.is_dir():
        known = ", ".join(sorted(path.parent.name for path in HERE.glob("*/build.toml")))
        raise ValueError(f"no kernel named {name!r}; choose one of {known}.")
    settings = (HERE / name / "build.toml").read_text()
    version = int(re.search(r"^version = (\d+)", settings, re.MULTILINE)[1])
    licence = re.search(r'^license = "(.+)"', settings, re.MULTILINE)[1]
    for variant in VARIANTS:
        target = output / name / "build" / f"torch-{variant}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.glob("*.py"))}
        metadata = {
            "id": f"_{name.replace('-', '_')}_{variant}",
            "name": name,
            "version": version,
            "license": licence,
            "python-depends": [],
            "backend": {"type": variant},
            "digest": {"algorithm": "sha256", "files": files},
        }
        (target / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    return output / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="for example dspark-verify")
    parser.add_argument("--output", type=Path, default=Path("build/kernels"))
    options = parser.parse_args()
    for name in options.names:
        build(name, options.output)


if __name__ == "__main__":
    main()
