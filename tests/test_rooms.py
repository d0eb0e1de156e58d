"""The rooms of the package, and which way imports may go between them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import anchorfold

ROOT = Path(anchorfold.__file__).parent
# From the bottom up: a room may import those before it, and itself.
ORDER = [
    "errors", "_registry", "_numerics", "budget", "focus", "fold", "scoring", "attention", "page", "compressors",
    "backbones", "documents", "index", "vectors", "cluster", "explain", "evaluation", "serve", "integrations", "demo",
    "cli", "testing",
]  # fmt: skip
AT_THE_ROOT = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), ast.parse(path.read_text())


def imported(tree):
    """Names of our own modules that a module imports anywhere, also inside functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "anchorfold":
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "anchorfold" else [node.module]
            yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "anchorfold")


def test_the_root_shows_the_method_and_the_rooms():
    entries = {p.stem if p.is_file() else p.name for p in ROOT.iterdir() if p.name not in {*AT_THE_ROOT, "__pycache__"}}
    assert entries == set(ORDER)


def test_imports_go_one_way():
    wrong = []
    for name, tree in modules():
        room = name.split(".")[0]
        if room in ("__init__", "__main__"):
            continue
        for target, line in imported(tree):
            other = target.split(".")[1] if "." in target else ""
            if other == "__version__" or other == "":
                continue
            if ORDER.index(other) > ORDER.index(room):
                wrong.append(f"{name}:{line} imports {target}")
    assert wrong == []


def test_no_module_imports_itself_through_others():
    names = {name.removesuffix(".__init__") for name, _ in modules()}
    graph = {}
    for name, tree in modules():
        targets = set()
        for target, _ in imported(tree):
            inner = target.removeprefix("anchorfold").removeprefix(".")
            targets.add(inner if inner in names else inner.rpartition(".")[0])
        graph[name.removesuffix(".__init__")] = {t for t in targets if t and t != name}
    TopologicalSorter(graph).prepare()  # raises with the cycle if there is one


def test_the_heart_does_no_input_or_output():
    allowed = {
        "torch",
        "math",
        "decimal",
        "collections",
        "dataclasses",
        "functools",
        "typing",
        "__future__",
        "anchorfold",
    }
    for name, tree in modules():
        if name in ("budget", "focus", "fold", "scoring", "_numerics"):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    assert {a.name.split(".")[0] for a in node.names} <= allowed, name
                elif isinstance(node, ast.ImportFrom):
                    assert (node.module or "").split(".")[0] in allowed, name
