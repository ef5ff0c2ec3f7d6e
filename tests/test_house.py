"""The house rules, read from the imports: which room may know which, who may touch private names and the network."""

import ast
import statistics
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dspark_hf"
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
SOURCES = sorted(PACKAGE.rglob("*.py"))
KERNEL_SOURCES = sorted((ROOT / "kernels").rglob("torch-ext/**/*.py"))

NETWORK_WRITERS = {
    "create_branch",
    "create_commit",
    "create_repo",
    "create_tag",
    "delete_file",
    "delete_folder",
    "delete_repo",
    "push_to_hub",
    "super_squash_history",
    "upload_file",
    "upload_folder",
    "upload_large_folder",
}


def own_imports(path: Path) -> set[str]:
    """Dotted names below `dspark_hf` that a file imports, relative imports resolved."""
    inside = path.is_relative_to(PACKAGE)
    package = path.relative_to(PACKAGE).parent.parts if inside else ()
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("dspark_hf.") for alias in node.names if alias.name.startswith("dspark_hf")
            }
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level and inside:
                base = package[: len(package) - node.level + 1]
                module = ".".join((*base, *filter(None, [module])))
            elif module == "dspark_hf":
                found |= {alias.name for alias in node.names}
                continue
            elif module.startswith("dspark_hf."):
                module = module.removeprefix("dspark_hf.")
            else:
                continue
            found |= {f"{module}.{alias.name}" if module else alias.name for alias in node.names}
    return found


def rooms_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in own_imports(path)} & (ROOMS | {"ops", "_kernels"})


def in_room(*rooms: str) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] in rooms]


def test_models_import_nothing_else_of_ours():
    assert {path.name: rooms_of(path) - {"models"} for path in in_room("models") if rooms_of(path) - {"models"}} == {}


def test_models_import_each_other_by_single_dots_only():
    for path in in_room("models"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("dspark_hf")):
                assert node.level == 1, f"{path.name}:{node.lineno}"


def test_scheduling_and_calibration_import_no_model():
    allowed = {"scheduling", "calibration"}
    assert {path.name: rooms_of(path) - allowed for path in in_room(*allowed) if rooms_of(path) - allowed} == {}


def test_only_ops_imports_kernels():
    users = {str(path.relative_to(PACKAGE)) for path in SOURCES if "_kernels" in rooms_of(path)}
    assert users <= {"ops.py"} | {name for name in users if name.startswith("_kernels/")}


def test_kernels_import_nothing_of_the_package():
    assert {str(path): own_imports(path) for path in KERNEL_SOURCES if own_imports(path)} == {}


def private_transformers_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    bound, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers" and not node.level:
            bound |= {alias.asname or alias.name for alias in node.names}
            found |= {alias.name for alias in node.names if alias.name.startswith("_")}
            found |= {part for part in node.module.split(".") if part.startswith("_")}
        elif isinstance(node, ast.Import):
            bound |= {alias.asname or "transformers" for alias in node.names if alias.name.startswith("transformers")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in bound:
                found.add(node.attr)
    return found


def test_only_the_dispatch_uses_private_names_of_transformers():
    users = {str(path.relative_to(PACKAGE)): names for path in SOURCES if (names := private_transformers_names(path))}
    assert set(users) <= {"generation/dispatch.py"}, users


def test_only_hub_writes_to_the_network():
    users = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
            if name in NETWORK_WRITERS:
                users.add(path.relative_to(PACKAGE).parts[0])
    assert users <= {"hub"}


def run_python(code: str) -> subprocess.CompletedProcess:
    """A fresh interpreter, in which nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_package_imports_without_triton_and_leaves_optional_packages_alone():
    code = (
        "import sys; sys.modules['triton'] = None; import dspark_hf; "
        "print([name for name in ('matplotlib', 'datasets', 'peft', 'pyarrow') if name in sys.modules])"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", ["env", "convert", "check", "push", "card", "generate", "train-and-push"])
def test_every_verb_explains_itself_without_the_optional_packages(verb):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('pyarrow', 'datasets', 'peft', 'matplotlib', 'gguf', 'accelerate'))); "
        f"from dspark_hf.cli import main; sys.argv = ['dspark-hf', {verb!r}, '--help']; main()"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_verb_that_needs_an_optional_package_names_the_extra(tmp_path):
    (tmp_path / "recipe.yaml").write_text("target: {toy: {}}\n")
    code = (
        "import sys; sys.modules['pyarrow'] = None; from dspark_hf.cli import main; "
        f"sys.argv = ['dspark-hf', 'prepare', {str(tmp_path / 'recipe.yaml')!r}, '--run-dir', {str(tmp_path / 'run')!r}]; main()"
    )
    done = run_python(code)
    assert done.returncode == 2, done.stderr
    assert 'pip install "dspark-hf[train]"' in done.stderr


@pytest.mark.parametrize("folder", ["src", "kernels"])
def test_files_stay_readable_in_one_sitting(folder):
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert max(lengths.values()) <= 500, max(lengths, key=lengths.__getitem__)
    assert statistics.median(lengths.values()) <= 200
