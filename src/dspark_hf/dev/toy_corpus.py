"""Text for the toy target: questions about Python's standard library, answered by its own docstrings and sources.

Every Python installation carries this text, so a demo needs no download. It knows nothing of tokenizers or models.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


# public modules with prose worth imitating; test suites, platform wrappers and generated tables are left out
MODULES = tuple(
    "abc argparse ast asyncio base64 bisect calendar cmd codecs collections concurrent configparser contextlib copy csv "
    "dataclasses datetime decimal difflib email enum fileinput fnmatch fractions functools glob gzip hashlib heapq html http "
    "imaplib inspect io ipaddress json linecache logging mailbox multiprocessing numbers os pathlib pickle platform plistlib "
    "pprint queue random re sched secrets selectors shelve shlex shutil socket socketserver sqlite3 ssl statistics string "
    "subprocess tarfile tempfile textwrap threading timeit traceback types typing unittest urllib uuid warnings weakref "
    "zipfile".split()
)
LONGEST_ANSWER = 300  # characters; a docstring is cut at a sentence
LONGEST_SOURCE = 7  # lines


@dataclass(frozen=True)
class ToySample:
    """One question and its answer.

    Attributes:
        id: unique, from the kind and the object's qualified name.
        kind: `"explain"` (answered by a docstring) or `"code"` (answered by source).
        prompt, answer: the two turns.
    """

    id: str
    kind: str
    prompt: str
    answer: str


def library_samples(folder: str | Path | None = None, *, limit: int | None = None) -> list[ToySample]:
    """Questions about the public functions and classes of a library.

    Args:
        folder (`str` or `Path`, *optional*): of Python sources; the running interpreter's standard library by default.
        limit (`int`, *optional*): at most this many, chosen by a hash of their ids, so that a larger limit only adds.

    Returns:
        `list[ToySample]`: in an order that depends on the ids alone.

    Raises:
        FileNotFoundError: the folder holds none of the modules.
    """
    root = Path(folder) if folder is not None else Path(sysconfig.get_paths()["stdlib"])
    found = _all_samples(root)
    if not found:
        raise FileNotFoundError(f"No documented module of the standard library's sources lies in {root}.")
    return list(found[:limit])


@lru_cache(maxsize=1)
def _all_samples(root: Path) -> tuple[ToySample, ...]:
    found = {sample.id: sample for path in _module_files(root) for sample in _samples_of(root, path)}
    return tuple(sorted(found.values(), key=lambda sample: hashlib.sha256(sample.id.encode()).digest()))


def _module_files(root: Path) -> Iterator[Path]:
    for name in MODULES:
        single = root / f"{name}.py"
        yield from [single] if single.is_file() else sorted((root / name).glob("**/*.py"))


def _samples_of(root: Path, path: Path) -> Iterator[ToySample]:
    names = path.relative_to(root).with_suffix("").parts
    if {"test", "tests"} & set(names) or any(part.startswith("_") and part != "__init__" for part in names):
        return
    module = ".".join(part for part in names if part != "__init__")
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for name, node in _definitions(ast.parse(text), module):
        document = ast.get_docstring(node)
        if document:
            yield from _sample("explain", name, f"Explain {name}.", _first_sentences(document))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < LONGEST_SOURCE:
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            yield from _sample("code", name, f"Show the code of {name}.", source)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith("_"):
            name = f"{prefix}.{child.name}"
            yield name, child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, name)


def _sample(kind: str, name: str, prompt: str, answer: str) -> Iterator[ToySample]:
    if answer.isascii() and len(answer) > 20:
        yield ToySample(id=f"{kind}:{name}", kind=kind, prompt=prompt, answer=answer)


def _first_sentences(document: str) -> str:
    if len(document) <= LONGEST_ANSWER:
        return document
    cut = document[:LONGEST_ANSWER]
    return cut[: cut.rfind(".") + 1] or cut
