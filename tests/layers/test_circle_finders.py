"""What finds the circles finds those that are put in, and nothing else: small trees made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from layers import python_modules, rust_modules
from layers.graph import Graph, circles, edges_within, folder_circles


def tree(folder: Path, text: str) -> Path:
    """Write files: a line `== path` begins each."""
    for part in text.split("== ")[1:]:
        name, _, body = part.partition("\n")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    return folder


def graph(edges: str) -> Graph:
    """`a>b` is an edge."""
    pairs = [edge.split(">") for edge in edges.split()]
    names = {name for pair in pairs for name in pair}
    return {name: frozenset(b for a, b in pairs if a == name) for name in names}


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ("a>b b>c a>c", []),
        ("a>b b>a", ["a b"]),
        ("a>b b>c c>a c>d d>e", ["a b c"]),
        ("a>b b>a c>d d>c b>c", ["a b", "c d"]),
        ("a>b b>c c>b c>d d>a", ["a b c d"]),
        ("a>c b>c c>d d>d", []),
    ],
)
def test_circles_of_a_graph(edges: str, expected: list[str]) -> None:
    assert circles(graph(edges)) == [line.split() for line in expected]


def test_folders_that_need_each_other() -> None:
    made = graph("p.a.x>p.b.x p.b.y>p.a.y p.a>p.a.x p>p.a")
    assert circles(made) == []
    assert folder_circles(made, ".") == [["p.a", "p.b"]]
    assert edges_within(made, ["p.a", "p.b"], ".") == ["p.a.x -> p.b.x", "p.b.y -> p.a.y"]
    assert folder_circles(graph("p.a.x>p.b.x p.b.y>p.c.y p>p.a"), ".") == []


A_NEEDS_B = "== p/__init__.py\n== p/a.py\nfrom p.b import thing\n== p/b.py\n"


@pytest.mark.parametrize(
    "back",
    [
        "from p.a import other",
        "from p import a",
        "from . import a",
        "from .a import other",
        "import p.a",
        "import os, p.a as q",
        "def f():\n    from p.a import other",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import other",
        "import importlib\nimportlib.import_module('p.a')",
    ],
)
def test_python_circle(tmp_path: Path, back: str) -> None:
    folder = tree(tmp_path, A_NEEDS_B + back)
    assert circles(python_modules.dependencies(folder / "p")) == [["p.a", "p.b"]]


@pytest.mark.parametrize("back", ["import a", "from p.c import a", "'from p.a import x'", "a = 1"])
def test_python_without_circle(tmp_path: Path, back: str) -> None:
    folder = tree(tmp_path, A_NEEDS_B + back + "\n== p/c.py\n")
    assert circles(python_modules.dependencies(folder / "p")) == []


def test_python_packages(tmp_path: Path) -> None:
    """A package is what it hands on; that its modules run it first is no dependency."""
    text = """
== p/__init__.py
== p/lazy.py
== p/inner/__init__.py
from p.lazy import exports
__getattr__ = exports(__name__, {"one": "One"})
== p/inner/one.py
from .two import Two
== p/inner/two.py
from ..outer import anything
== p/outer.py
from p import native
== p/native.pyi
"""
    found = python_modules.dependencies(tree(tmp_path, text) / "p")
    assert found["p.inner"] == {"p.lazy", "p.inner.one"}
    assert found["p.inner.one"] == {"p.inner.two"}
    assert found["p.inner.two"] == {"p.outer"}
    assert found["p.outer"] == {"p.native"}
    assert circles(found) == []
    for back in ("from p.inner import One", "from . import One"):
        (tmp_path / "p" / "inner" / "two.py").write_text(back)
        found = python_modules.dependencies(tmp_path / "p")
        assert circles(found) == [["p.inner", "p.inner.one", "p.inner.two"]]


CRATE = """
== lib.rs
//! use crate::b;
mod a;
mod b;
pub use a::Thing;
#[cfg(test)]
mod tests;
== tests.rs
use super::*;
== a.rs
use crate::b::Other;
pub struct Thing<'a>(&'a Other);
== b.rs
pub struct Other;
"""


@pytest.mark.parametrize(
    "back",
    [
        "use crate::a::Thing;",
        "use super::a::Thing;",
        "use crate::Thing;",
        "use crate::{a::{Thing as T}};",
        "use crate::a::*;",
        "use super::a;\nfn f(_: a::Thing) {}",
        "use crate::a::{self};\nfn f() -> u8 { let c = '{'; a::g(c) }",
        "pub use crate::a::Thing as Same;",
        'fn f<\'x>() { let s = "\\"{"; crate::a::g::<u8>(s) }',
        "fn f() { let s = r#\"}\"{\"#; super::a::g(b'\\'', s) }",
        "mod inner {\n    use super::super::a::Thing;\n}",
        "#[cfg(not(test))]\nuse crate::a::Thing;",
        "#[derive(Clone)]\nstruct S { t: Vec<crate::a::Thing> }",
    ],
)
def test_rust_circle(tmp_path: Path, back: str) -> None:
    found = rust_modules.dependencies(tree(tmp_path, CRATE + back))
    assert circles(found) == [["crate::a", "crate::b"]]


@pytest.mark.parametrize(
    "back",
    [
        "// use crate::a::Thing;",
        "/* use crate::a::Thing; */",
        '/// ```\n/// use crate::a::Thing;\n/// ```\nconst S: &str = "crate::a::Thing";',
        "#[cfg(test)]\nmod tests {\n    use crate::a::Thing;\n    fn f() { [(); 3]; }\n}",
        "#[cfg(test)]\n#[allow(unused)]\nuse crate::a::Thing;",
        "#[cfg(all(test, unix))]\nfn f(x: [u8; 2]) -> crate::a::Thing {}",
        "pub(in crate::a) fn f() {}",
        "use std::a::Thing;\nuse a::Thing;",
        "fn f(x: X) { x.a::<u8>(); std::a::g() }",
    ],
)
def test_rust_without_circle(tmp_path: Path, back: str) -> None:
    found = rust_modules.dependencies(tree(tmp_path, CRATE + back))
    assert circles(found) == []
    assert set(found) == {"crate", "crate::a", "crate::b"}


PARENT = """
== lib.rs
mod parent;
== parent/mod.rs
mod child;
mod other;
pub use child::Thing;
use other::Private;
== parent/child.rs
pub struct Thing;
impl Thing { fn f(_: super::Private) {} }
== parent/other.rs
pub struct Private;
"""


def test_rust_parent_that_declares_and_hands_on_is_in_no_circle(tmp_path: Path) -> None:
    found = rust_modules.dependencies(tree(tmp_path, PARENT))
    assert found["crate::parent"] == {"crate::parent::child", "crate::parent::other"}
    assert found["crate::parent::child"] == {"crate::parent::other"}
    assert circles(found) == []


@pytest.mark.parametrize("item", ["Own", "own()", "OWN", "inner::Own"])
def test_rust_parent_whose_items_a_child_uses_is_in_a_circle(tmp_path: Path, item: str) -> None:
    own = "struct Own;\nfn own() {}\nconst OWN: u8 = 0;\nmod inner { pub struct Own; }\n"
    text = PARENT.replace("use other::Private;\n", f"use other::Private;\n{own}")
    text = text.replace("struct Private;", f"struct Private;\nfn f() {{ super::{item}; }}")
    found = rust_modules.dependencies(tree(tmp_path, text))
    assert circles(found) == [["crate::parent", "crate::parent::child", "crate::parent::other"]]


def test_rust_folders_that_need_each_other(tmp_path: Path) -> None:
    text = """
== lib.rs
mod a;
mod b;
== a.rs
mod one;
mod two;
== a/one.rs
use crate::b::one::Thing;
== a/two.rs
pub struct Other;
== b.rs
pub mod one;
mod two;
== b/one.rs
pub struct Thing;
== b/two.rs
use crate::a::two::Other;
"""
    found = rust_modules.dependencies(tree(tmp_path, text))
    assert circles(found) == []
    assert folder_circles(found, "::") == [["crate::a", "crate::b"]]
