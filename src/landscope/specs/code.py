"""The code behind a name: what of the user's own modules runs when `package.module:function` is called, read and never run.

Results are recognised by this code, so it must change exactly when what is executed does. A function is followed from its
definition to every definition, constant and import that it names, through all modules of the user's own; what is installed, and
Landscope itself, are not looked into. Comments, docstrings, layout and functions that are not used leave no trace.

A statement at the top of a module counts if it defines a name that is used, or acts without defining one, since importing the
module runs it (`torch.set_default_dtype(…)`, `register(Net)`); what is under `if __name__ == "__main__":` does not count. Where
code looks names up (`globals()`, `eval`), the whole module counts. Modules imported by a computed name, and files that a function
reads, are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from landscope.core.errors import SpecError
from landscope.specs.names import PACKAGE, find_module, import_function, locate, public_name, split_name

DIGITS = 12
WHOLE = "*"
"""In place of a name: all that a module defines."""
LOOKED_UP = {"globals", "locals", "vars", "eval", "exec"}
"""Functions that may reach any name of the module they are called in."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def source_version(source: str, *, imports: bool = True) -> str:
    """The name of a function with a digest of the code that runs when it is called, so that an edit is another version.

    One of Landscope's functions goes by its public name alone, one that is not written in Python by its name. With `imports` it
    is imported, so that a wrong name is noticed; otherwise only its module is looked for.

    >>> source_version("math:hypot")
    'math:hypot'
    """
    import_function(source) if imports else locate(source)
    if _is_ours(source):
        return public_name(source)
    digests = code_digests(source)
    return f"{source} {_digest(repr(sorted(digests.items())))}" if digests else source


def file_version(source: str, *, imports: bool = True) -> str:
    """The version by which results were recognised up to 0.1: with a digest of the whole file that the function is written in."""
    if _is_ours(source):
        return public_name(source)
    file = locate(source)
    if imports:
        module = sys.modules.get(getattr(import_function(source), "__module__", "") or "")
        written = getattr(module, "__file__", None)
        file = Path(written) if written else None
    if file is None or file.suffix != ".py":
        return source
    return f"{source} {hashlib.sha256(file.read_bytes()).hexdigest()[:DIGITS]}"


def code_digests(source: str) -> dict[str, str]:
    """Digests of all that calling `source` may run: definitions, by `module.name`, and what modules do at their top, by `module`.

    >>> sorted(code_digests("json.scanner:py_make_scanner"))
    ['json.scanner.NUMBER_RE', 'json.scanner.py_make_scanner', 'json.scanner.re']
    """
    if _is_ours(source):
        return {}
    module, name = split_name(source)
    reader = _Reader(module.partition(".")[0])
    if reader.module(module) is None:
        return {}
    reader.read(module, name.partition(".")[0])
    return {part: _digest("\n".join(found)) for part, found in sorted(reader.parts.items())}


def _is_ours(source: str) -> bool:
    return source.partition(":")[0].partition(".")[0] == PACKAGE


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


@dataclass
class _Module:
    """The top level of a module: which statement binds which name, what is imported, what acts."""

    name: str
    package: str
    statements: list[ast.stmt] = field(default_factory=list)
    bound: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, list[tuple[str, str | None]]] = field(default_factory=dict)
    """Name → (module, what of it; None for the module itself)."""
    stars: list[str] = field(default_factory=list)


class _Reader:
    """Follows names through the modules of the user's own, each name once."""

    def __init__(self, top: str) -> None:
        self.parts: dict[str, list[str]] = {}
        self._top = top
        self._modules: dict[str, _Module | None] = {}
        self._todo: list[tuple[_Module, str]] = []
        self._seen: set[tuple[str, str]] = set()

    def read(self, module: str, name: str) -> None:
        self._reach(module, [name])
        while self._todo:
            found, wanted = self._todo.pop()
            for one in dict.fromkeys((*found.bound, *found.imported)) if wanted == WHOLE else [wanted]:
                self._define(found, one)

    def module(self, name: str) -> _Module | None:
        """A module of the user's own, read once; None for any other."""
        if name not in self._modules:
            self._modules[name] = None  # while it is being read
            spec = find_module(name)
            if spec is not None and self._is_own(name, spec):
                self._modules[name] = found = _read_module(name, spec)
                self._act(found)
        return self._modules[name]

    def _is_own(self, name: str, spec: ModuleSpec) -> bool:
        places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
        if not places or (spec.has_location and not places[0].endswith(".py")) or name.partition(".")[0] == PACKAGE:
            return False
        return name.partition(".")[0] == self._top or not any(
            os.path.realpath(places[0]).startswith(folder + os.sep) for folder in _installed()
        )

    def _act(self, module: _Module) -> None:
        acting = [one for one in module.statements if self._acts(one, module)]
        if acting:
            self.parts[module.name] = [_text(one) for one in acting]
        for one in acting:
            self._follow(module, one)
        if "." in module.name:
            self.module(module.name.rpartition(".")[0])
        for star in module.stars:
            self.module(star)

    def _acts(self, statement: ast.stmt, module: _Module) -> bool:
        for node in _outside_functions(statement):
            if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
                return True
            changes = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if changes and _root(node) in module.imported:
                return True
            if isinstance(node, SCOPES) and any(
                not self._is_foreign(_root(decorator), module) for decorator in getattr(node, "decorator_list", ())
            ):
                return True  # it may enter what it decorates into a table
        return not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass) and not any(_binds(statement))

    def _is_foreign(self, name: str, module: _Module) -> bool:
        return name not in module.bound and all(self.module(of) is None for of, _ in module.imported.get(name, ()))

    def _define(self, module: _Module, name: str) -> None:
        if (module.name, name) in self._seen:
            return
        self._seen.add((module.name, name))
        found = []
        for of, what in module.imported.get(name, ()):
            if self.module(of) is None:
                found.append(f"{of} {what}")
            else:
                self._reach(of, [what] if what else [])
        for statement in module.bound.get(name, ()):
            found.append(_text(statement))
            self._follow(module, statement)
        if found:
            self.parts[f"{module.name}.{name}"] = found

    def _follow(self, module: _Module, statement: ast.stmt) -> None:
        """Reach all that a statement names."""
        for root, below in _uses(statement):
            if root in LOOKED_UP and root not in module.bound:
                self._todo.append((module, WHOLE))
            elif root in module.bound:
                self._todo.append((module, root))
            elif root in module.imported:
                for of, what in module.imported[root]:
                    self._reach(of, [what, *below] if what else below)
                if self._is_foreign(root, module):
                    self._todo.append((module, root))
            else:
                for star in module.stars:
                    if (other := self.module(star)) is not None and (root in other.bound or root in other.imported):
                        self._todo.append((other, root))
        for name, of, what in _imports(module.package, statement):
            if statement not in module.bound.get(name, ()):
                self._reach(of, [what] if what and what != WHOLE else [])

    def _reach(self, module: str, below: list[str]) -> None:
        """Read on at `module.a.b`: the name `a` of the module, or of the module `module.a`; without a name all of it."""
        found = self.module(module)
        if found is None:
            return
        name = below[0] if below else WHOLE
        if not below or name in found.bound or name in found.imported:
            self._todo.append((found, name))
        elif self.module(f"{module}.{name}") is not None:
            self._reach(f"{module}.{name}", below[1:])
        elif stars := [star for star in found.stars if self.module(star) is not None]:
            for star in stars:
                self._reach(star, below)
        else:
            self._todo.append((found, WHOLE))


def _read_module(name: str, spec: ModuleSpec) -> _Module:
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    module = _Module(name, package)
    if not spec.has_location or spec.origin is None:  # a mere folder
        return module
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise SpecError(f"{spec.origin}{line}: is not Python: {getattr(error, 'msg', error)}") from error
    module.statements = [one for one in tree.body if not _never_runs(one) and not _is_text(one)]
    for statement in module.statements:
        for bound, of, what in _imports(package, statement, inside=False):
            if what == WHOLE:
                module.stars.append(of)
            else:
                module.imported.setdefault(bound, []).append((of, what))
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            for bound in dict.fromkeys(_binds(statement)):
                module.bound.setdefault(bound, []).append(statement)
    return module


def _never_runs(statement: ast.stmt) -> bool:
    """Whether it is under `if __name__ == "__main__":` or `if TYPE_CHECKING:`."""
    test = statement.test if isinstance(statement, ast.If) else None
    if isinstance(test, ast.Compare):
        return isinstance(test.left, ast.Name) and test.left.id == "__name__"
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _outside_functions(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that run when it does; of functions and classes only their definition."""
    yield statement
    if not isinstance(statement, SCOPES):
        for child in ast.iter_child_nodes(statement):
            yield from _outside_functions(child)


def _binds(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement defines or changes, also in part: `table["a"] = 1` changes `table`."""
    for node in _outside_functions(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield _root(node)


def _root(node: ast.AST) -> str:
    """The name at the beginning of `name.a[1].b(…)`; nothing where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _uses(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Every name in a statement with what is taken of it: `("blocks", ["Block"])` for `blocks.Block`."""
    below: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        below.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield inner.id, below
        return
    for child in ast.iter_child_nodes(inner):
        yield from _uses(child)


def _imports(package: str, statement: ast.stmt, *, inside: bool = True) -> Iterator[tuple[str, str, str | None]]:
    """(name, module, what of it) for each import in a statement, those inside functions included or not."""
    for node in ast.walk(statement) if inside else _outside_functions(statement):
        if isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, module, None
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, module, alias.name


def _text(node: ast.AST) -> str:
    """A statement in one spelling, for every version of Python: without places, docstrings and what is empty."""
    fields = []
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            items = value[1:] if name == "body" and isinstance(node, SCOPES) and _is_text(value[0]) else value
            value = [_text(item) if isinstance(item, ast.AST) else repr(item) for item in items]
        elif isinstance(value, ast.AST):
            value = _text(value)
        elif value is not None:
            value = repr(value)
        if value not in (None, []) and name != "ctx":
            fields.append(f"{name}={value}")
    return f"{type(node).__name__}({', '.join(fields)})"


@cache
def _installed() -> tuple[str, ...]:
    """The folders of Python itself and of packages that were installed."""
    paths = [sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = {os.path.realpath(path) for path in (*paths, *site.getsitepackages(), site.getusersitepackages())}
    return tuple(sorted(found))
