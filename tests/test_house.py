"""What the layout promises, read off the syntax trees: no import circles, and no guessing what one has in hand.

Which folder may import which is checked by import-linter (.importlinter).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "seqtool"
FILES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
KNOWING = ("tasks/", "models/fast/")  # what may know which class a thing is of
KINDS = ("models/", "data/cache.py")  # files whose classes are models, caches and splits
INPUTS = "models/inputs.py"  # what a model reads may be asked
PLATFORM = {("runtime/precision.py", "hasattr"), ("runtime/workers.py", "hasattr")}  # what torch or the system offers


def classes(prefixes: tuple[str, ...]) -> set[str]:
    return {
        node.name
        for name, tree in FILES.items()
        if name.startswith(prefixes) and name != INPUTS
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def questions(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Every `isinstance` and `hasattr`, with the names that stand in its second argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "hasattr"):
            named = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
            yield node.func.id, named


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_asks_what_kind_of_model_or_data_it_has(name: str) -> None:
    if name.startswith(KNOWING):
        return
    kinds = classes(KINDS)
    for question, named in questions(FILES[name]):
        assert question == "isinstance" or (name, question) in PLATFORM, f"{name} asks with hasattr"
        if not name.startswith("models/"):
            assert not named & kinds, f"{name} asks whether it has a {', '.join(sorted(named & kinds))}"


def imports(node: ast.AST) -> Iterator[str]:
    """What a module imports at its top and inside functions, but not for the type checker alone: modules, or names in
    modules, by their dotted names.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{name.name}" for name in child.names)
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        yield from imports(child)


def import_circles() -> set[frozenset[str]]:
    """Sets of modules, each of which imports all others of its set through some of them."""
    modules = {
        f"seqtool.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__"): name for name in FILES
    }
    reached = {}
    for module, file in modules.items():
        named = {name if name in modules else name.rpartition(".")[0] for name in imports(FILES[file])}
        reached[module] = (named & modules.keys()) - {module}
    for through in modules:  # Warshall's algorithm
        for module in modules:
            if through in reached[module]:
                reached[module] |= reached[through]
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in modules
        if module in reached[module]
    }


def test_imports_have_no_circles() -> None:
    assert not import_circles()


def test_equations_hold_no_hand_written_gradients() -> None:
    found = [
        f"{name}: {node.name}"
        for name, tree in FILES.items()
        if not name.startswith("models/fast/")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("autograd.Function") for base in node.bases)
    ]
    assert not found


def test_the_package_has_few_parts() -> None:
    parts = {name.partition("/")[0] for name in FILES} - {"__init__.py", "__main__.py", "errors.py"}
    assert len(parts) <= 13, sorted(parts)
