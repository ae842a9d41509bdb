"""Tests of the layout, by syntax trees: no import cycles, and no code that asks for the class of a model or of data.

Which folder may import which is checked by import-linter (.importlinter).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seqtool"
FILES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
MAY_ASK = ("tasks/", "models/fast/")  # modules that may ask for the class of a model or of data
DEFINING = ("models/", "data/cache.py")  # the modules whose classes are models, caches and splits
INPUTS = "models/inputs.py"  # its classes are the inputs of models, which any module may ask for
PLATFORM = {("runtime/precision.py", "hasattr"), ("runtime/workers.py", "hasattr")}  # what torch or Linux offers


def classes(prefixes: tuple[str, ...]) -> set[str]:
    return {
        node.name
        for name, tree in FILES.items()
        if name.startswith(prefixes) and name != INPUTS
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def class_checks(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield every call of `isinstance` and `hasattr`, with the names in its second argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr"):
            names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            yield node.func.id, names


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_module_asks_for_the_class_of_a_model_or_of_data(name: str) -> None:
    if name.startswith(MAY_ASK):
        return
    forbidden = classes(DEFINING)
    for function, names in class_checks(FILES[name]):
        assert function == "isinstance" or (name, function) in PLATFORM, f"{name} asks with hasattr"
        if not name.startswith("models/"):
            assert not names & forbidden, f"{name} asks whether it has a {', '.join(sorted(names & forbidden))}"


def imports(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names of the modules, and of names in modules, that a tree imports, inside functions, too.
    Imports for the type checker alone are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{name.name}" for name in child.names)
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        yield from imports(child)


def import_cycles() -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through other modules of the set."""
    modules = {
        f"seqtool.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__"): name for name in FILES
    }
    reachable = {}
    for module, file in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imports(FILES[file])}
        reachable[module] = (names & modules.keys()) - {module}
    for middle in modules:  # Warshall's algorithm
        for module in modules:
            if middle in reachable[module]:
                reachable[module] |= reachable[middle]
    return {
        frozenset(other for other in reachable[module] if module in reachable[other])
        for module in modules
        if module in reachable[module]
    }


def test_imports_have_no_cycles() -> None:
    assert not import_cycles()


def test_models_have_no_hand_written_gradients() -> None:
    gradient_classes = [
        f"{name}: {node.name}"
        for name, tree in FILES.items()
        if not name.startswith("models/fast/")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("autograd.Function") for base in node.bases)
    ]
    assert not gradient_classes


def test_the_package_has_few_parts() -> None:
    parts = {name.partition("/")[0] for name in FILES} - {"__init__.py", "__main__.py", "api.py", "errors.py"}
    assert len(parts) <= 13, sorted(parts)
