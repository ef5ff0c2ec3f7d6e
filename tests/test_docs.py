"""Every code block of README and docs runs, with tiny stand-ins on the loopback Hub for the models that they name.

`python` blocks of a page run in order in one namespace; `bash` lines run through the command line's own entry; a `yaml` block that
begins with `# file: NAME` is written to NAME. `console` blocks need what a test cannot have (servers, GPUs, hours): their `dspark-hf`
lines are parsed, and the targets of `make` and the extras of `pip` have to exist.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dspark_hf.cli import cli
from dspark_hf.dev.tiny import tiny_drafter, tiny_target
from dspark_hf.dev.tiny_tokenizer import tiny_tokenizer
from dspark_hf.hub import push_drafter


ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
TARGET = "Qwen/Qwen3-0.6B"
DRAFTERS = ("me/dspark-qwen3-0.6b", "me/dspark-qwen3-0.6b-small")
# What a page's recipe is run with here: the same stages, seconds instead of hours.
SMALL = (
    "data.max_rows=24 data.held_out_fraction=0.3 data.max_new_tokens=12 data.max_prompt_tokens=64 data.batch_size=8 "
    "drafter.block_size=4 drafter.num_hidden_layers=1 drafter.markov_rank=8 drafter.mask_token_id=63 "
    "drafter.target_layer_ids=[0,1] train.max_steps=2 train.max_row_tokens=64 train.max_tokens=256 train.anchors_per_row=4 "
    "calibrate.prompts=4 calibrate.max_new_tokens=12 calibrate.cost_context_tokens=16 calibrate.cost_seconds=0.2 "
    "evaluate.prompts=2 evaluate.max_new_tokens=8"
).split()
RECIPE_VERBS = ("train-and-push", "prepare", "train", "calibrate", "profile", "evaluate")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.append(Block(match[1], match[2], text[: match.start()].count("\n") + 2))
    return found


def commands_of(block: Block) -> list[list[str]]:
    joined = block.text.replace("\\\n", " ")
    lines = [shlex.split(line.removeprefix("$ "), comments=True) for line in joined.splitlines()]
    return [words for words in lines if words]


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory) -> Path:
    """A folder with a tiny target and drafter."""
    folder = tmp_path_factory.mktemp("docs")
    target = tiny_target()
    target.save_pretrained(folder / "target")
    tiny_tokenizer().save_pretrained(folder / "target")
    drafter = tiny_drafter(target)
    drafter.config.target_name_or_path = TARGET
    drafter.save_pretrained(folder / "drafter")
    return folder


@pytest.fixture
def world(hub, stand_ins, tmp_path, monkeypatch) -> Path:
    """A working folder with prompts and a drafter, and a Hub that holds the models the pages name."""
    from huggingface_hub import HfApi

    HfApi().create_repo("me/stand-in")
    repo = hub.repos.pop("me/stand-in")
    repo.add_commit("main", "target", {path.name: path.read_bytes() for path in (stand_ins / "target").iterdir()})
    hub.repos[TARGET] = repo
    for name in DRAFTERS:
        push_drafter(stand_ins / "drafter", name)
    for name in ("target", "drafter"):
        (tmp_path / name).symlink_to(stand_ins / name)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    prompts = "".join('{"turns": ["%s"]}\n' % (letter * 5) for letter in "abcdefghijklmnopqrstuvwxyz")
    (tmp_path / "prompts.jsonl").write_text(prompts)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(words: list[str]) -> None:
    if words[1] in RECIPE_VERBS and words[2].endswith(".yaml"):
        if words[2].startswith("recipes/"):
            return parse_command(words)
        words = [*words, *(part for knob in SMALL for part in ("-o", knob))]
    result = CliRunner().invoke(cli, words[1:])
    assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}\n{result.exception!r}"


def parse_command(words: list[str]) -> None:
    """Options and arguments as the verb declares them; nothing runs."""
    verb = cli.get_command(click.Context(cli), words[1])
    assert verb is not None, f"no verb {words[1]!r}"
    verb.make_context(words[1], list(words[2:]))


def check_foreign(words: list[str]) -> None:
    """Lines of other programs: what can be known without running them."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no make target {words[1]}"
    if words[:2] == ["pip", "install"]:
        extras = importlib.metadata.metadata("dspark-hf").get_all("Provides-Extra")
        for word in words[2:]:
            for extra in re.findall(r"dspark-hf\[([\w,-]+)\]", word):
                assert set(extra.split(",")) <= set(extras), word
    if "dspark_hf.cli" in words:
        parse_command(["dspark-hf", *words[words.index("dspark_hf.cli") + 1 :]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page, world):
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
        elif block.language == "yaml" and block.text.startswith("# file: "):
            (world / block.text.splitlines()[0].removeprefix("# file: ")).write_text(block.text)
        elif block.language in ("bash", "console"):
            for words in commands_of(block):
                if words[0] != "dspark-hf":
                    check_foreign(words)
                elif block.language == "bash":
                    run_command(words)
                else:
                    parse_command(words)


def test_commands_of_the_recipes_page_are_spelt_right(world):
    for block in blocks_of(ROOT / "recipes" / "README.md"):
        for words in commands_of(block):
            parse_command(words) if words[0] == "dspark-hf" else check_foreign(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_page_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_blocks_are_of_a_known_kind():
    kinds = {block.language for page in PAGES for block in blocks_of(page)}
    assert kinds <= {"python", "bash", "console", "yaml", "text"}


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
