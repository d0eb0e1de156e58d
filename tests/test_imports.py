"""Packages of anchorfold and the direction of imports between them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import anchorfold

ROOT = Path(anchorfold.__file__).parent
# From the bottom up: a package may import those before it, and itself.
ORDER = [
    "_lazy", "errors", "_registry", "core", "attention", "page", "compressors", "backbones", "documents",
    "quantization", "filters", "storage", "retrieval", "databases", "ingestion", "exporters", "indexes",
    "vectors", "cluster", "explanation", "evaluation", "server", "integrations", "demo", "cli", "testing",
]  # fmt: skip
AT_THE_ROOT = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed"}
PURE = {"torch", "math", "decimal", "collections", "dataclasses", "functools", "typing", "__future__", "anchorfold"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), ast.parse(path.read_text())


def imported_modules(tree):
    """Names of anchorfold modules that a module imports anywhere, also inside functions and for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "anchorfold":
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "anchorfold" else [node.module]
            yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names if a.name.split(".")[0] == "anchorfold")


def test_all_packages_are_ordered():
    entries = {p.stem if p.is_file() else p.name for p in ROOT.iterdir() if p.name not in {*AT_THE_ROOT, "__pycache__"}}
    assert entries == set(ORDER)


def test_imports_follow_the_order():
    violations = []
    for name, tree in modules():
        package = name.split(".")[0]
        if package in ("__init__", "__main__"):
            continue
        for target, line in imported_modules(tree):
            other = target.split(".")[1] if "." in target else ""
            if other not in ("__version__", "") and ORDER.index(other) > ORDER.index(package):
                violations.append(f"{name}:{line} imports {target}")
    assert violations == []


def test_no_import_cycles():
    names = {name.removesuffix(".__init__") for name, _ in modules()}
    graph = {}
    for name, tree in modules():
        targets = set()
        for target, _ in imported_modules(tree):
            inner = target.removeprefix("anchorfold").removeprefix(".")
            targets.add(inner if inner in names else inner.rpartition(".")[0])
        graph[name.removesuffix(".__init__")] = {t for t in targets if t and t != name}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_core_performs_no_io():
    for name, tree in modules():
        if name.startswith("core."):
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    assert {a.name.split(".")[0] for a in node.names} <= PURE, name
                elif isinstance(node, ast.ImportFrom):
                    assert (node.module or "").split(".")[0] in PURE, name
