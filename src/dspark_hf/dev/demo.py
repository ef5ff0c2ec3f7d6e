"""`make demo`: trains and publishes a drafter through the command line, then loads it back in a new process and uses it.

    python -m dspark_hf.dev.demo                       # the embedded toy, a Hub on this machine
    python -m dspark_hf.dev.demo --real                # SmolLM2-135M-Instruct from its registry package
    python -m dspark_hf.dev.demo --repo-id me/drafter  # the real Hub, with your token

The two steps run in processes of their own because a Hub library reads its endpoint when it is imported. This file knows the order
of the steps and what to print; `demo_generate.py` measures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dspark_hf.pipeline.state import RunFolder

from .loopback_hub import LoopbackHub


REPO = "tester/dspark-demo"
RECIPES = {False: "toy/cpu.yaml", True: "smollm2-135m/cpu-quick.yaml"}


def main() -> int:
    arguments = parse_arguments()
    recipe = recipe_path(RECIPES[arguments.real])
    run_dir = Path(arguments.run_dir or f"runs/demo{'-real' if arguments.real else ''}")
    started = time.monotonic()
    with hub_environment(arguments.repo_id) as environment:
        repo_id = arguments.repo_id or REPO
        command = [sys.executable, "-m", "dspark_hf.cli", "train-and-push", str(recipe), "--run-dir", str(run_dir)]
        command += ["--no-push"] if arguments.no_push else ["--repo-id", repo_id]
        for override in arguments.override:
            command += ["-o", override]
        code = subprocess.run(command, env=environment).returncode
        if code != 0:
            return code
        results = RunFolder(run_dir)
        source = results.result("assemble")["folder"] if arguments.no_push else repo_id
        # the folder of the run, so that another run's download cannot stand in for this one
        environment["HF_HUB_CACHE"] = str(run_dir / "downloads")
        command = [sys.executable, "-m", "dspark_hf.dev.demo_generate", str(recipe), source, "--run-dir", str(run_dir)]
        command += [word for override in arguments.override for word in ("-o", override)]
        code = subprocess.run(command, env=environment).returncode
        if code != 0:
            return code
        places = [f"card: {results.result('assemble')['card']}"]
        if not arguments.no_push:
            places.append(
                f"pushed to: {environment.get('HF_ENDPOINT', 'https://huggingface.co')}/{repo_id}"
                + ("" if arguments.repo_id else " (a Hub on this machine, gone when the demo ends)")
            )
        sys.stdout.write("\n".join([*places, f"wall time: {time.monotonic() - started:.0f} s", ""]))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dspark_hf.dev.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--real", action="store_true", help="SmolLM2-135M-Instruct instead of the toy")
    parser.add_argument("--repo-id", help="push to the real Hub, with your token, instead of one on this machine")
    parser.add_argument("--no-push", action="store_true", help="stop at the folder")
    parser.add_argument("--prompts", help="JSONL of your own prompts")
    parser.add_argument("--run-dir", help="folder of the run; a finished one is not computed again")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.prompts:
        arguments.override += [f"data.prompts={json.dumps(arguments.prompts)}", "data.domains=null"]
    return arguments


def recipe_path(name: str) -> Path:
    """A recipe of the repo, or of the installed package."""
    local = Path("recipes") / name
    if local.is_file():
        return local
    from importlib import resources

    return Path(str(resources.files("dspark_hf._recipes") / name))


@contextlib.contextmanager
def hub_environment(repo_id: str | None) -> Iterator[dict[str, str]]:
    """Environment of the steps: the real Hub where a repo was named, else a loopback one."""
    if repo_id:
        yield dict(os.environ)
        return
    with LoopbackHub() as hub:
        yield {**os.environ, **hub.environment()}


if __name__ == "__main__":
    sys.exit(main())
