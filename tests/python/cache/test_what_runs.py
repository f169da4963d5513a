# SPDX-License-Identifier: Apache-2.0
"""Stamps of builders and names of datasets, which are decided by what runs: the code and values behind names,
decorators, imports and arguments, and not the text of files."""

from __future__ import annotations

import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import headrace
import pytest
from cache_scripts import Scripts
from headrace._base import users_code, warn
from headrace._cache import digest, unfollowed

pytestmark = pytest.mark.usefixtures("root")

Write = Callable[..., Any]


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Returns a function that writes modules of the user, and a package `library` that is installed next to them, and
    imports the module `main`."""
    count, path = [0], list(sys.path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        for name, one in list(sys.modules.items()):
            places = [vars(one).get("__file__"), *(vars(one).get("__path__") or ())]
            if any(str(place).startswith(str(tmp_path)) for place in places):
                del sys.modules[name]
        for cached in (users_code.version_of, users_code._is_installed, users_code._local_packages):
            cached.cache_clear()

    def make(library: str = "", version: str = "1", url: dict[str, Any] | None = None, **modules: str) -> Any:
        folder = tmp_path / str(count[0])
        count[0] += 1
        info = folder / f"installed/library-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text("library.py,sha256=x,1\n")
        if url is not None:
            (info / "direct_url.json").write_text(json.dumps(url))
        (folder / "installed/library.py").write_text(library)
        for name, text in modules.items():
            file = folder / f"users/{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        sys.path[:] = [str(folder / "users"), str(folder / "installed"), *path]
        forget()
        importlib.invalidate_caches()
        return importlib.import_module("main")

    yield make
    sys.path[:] = path
    forget()


class Data:
    """A dataset that has something of the user in an attribute."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.held(index)


def all_seen(use: Any) -> list[Any]:
    """Returns what belongs to a builder that names `use`, to a dataset that has it, and to a call with it."""
    return [
        digest.seen_by(lambda: use(1), False).seen,
        digest.seen_by(functools.partial(map, use), False).seen,
        digest.seen_in(Data(use)),
        digest.seen_in(Data([use])),
        digest.seen_by(print, False, [[use], {}]).seen,
    ]


HEAD = "import abc, array, collections, contextlib, contextvars, dataclasses, enum, functools, types, typing, weakref\n"
RETRY = "def retry(n):\n def d(f):\n  def w(*a): return f(*a) * n\n  return w\n return d\n"
OBJECT = """
import threading
class W:
    def __init__(self, f): self.f, self.lock = f, threading.Lock()
    def __call__(self, *a): return self.f(*a)
"""
SCALE = "def scale(x): return x * NUMBER"

# Each defines `use`, which does something else if NUMBER is another one.
CODE: dict[str, dict[str, str]] = {
    "decorator": {"main": "def d(f):\n def w(x): return f(x) * NUMBER\n return w\n@d\ndef use(x): return x"},
    "decorated": {"main": "def d(f):\n def w(x): return f(x)\n return w\n@d\ndef use(x): return x * NUMBER"},
    "no_grad": {"main": "import torch\n@torch.no_grad()\ndef use(x): return x * NUMBER"},
    "autocast": {"main": "import torch\n@torch.autocast('cpu')\ndef use(x): return x * NUMBER"},
    "contextmanager": {
        "main": "@contextlib.contextmanager\ndef c(): yield NUMBER\ndef use(x):\n with c() as y: return x * y"
    },
    "two decorators": {"main": "import torch\n@functools.lru_cache\n@torch.no_grad()\ndef use(x): return x * NUMBER"},
    "singledispatch": {
        "main": "@functools.singledispatch\ndef use(x): pass\n@use.register(int)\ndef _(x): return x * NUMBER"
    },
    "property": {"main": "import torch\nclass A:\n @property\n @torch.no_grad()\n def p(s): return NUMBER\nuse = A()"},
    "decorator of a library": {
        "library": RETRY,
        "main": "import library\n@library.retry(3)\ndef use(x): return x * NUMBER",
    },
    "argument of such a decorator": {
        "library": RETRY,
        "main": "import library\n@library.retry(NUMBER)\ndef use(x): return x",
    },
    "object of a library around it": {
        "library": OBJECT,
        "main": "import library\n@library.W\ndef use(x): return x * NUMBER",
    },
    "partialmethod": {
        "main": "class A:\n def m(s, n, x): return n * x\n p = functools.partialmethod(m, NUMBER)\nuse = A().p"
    },
    "import inside": {"main": "def use(x):\n from steps import scale\n return scale(x)", "steps": SCALE},
    "import of a module inside": {"main": "def use(x):\n import steps\n return steps.scale(x)", "steps": SCALE},
    "import under a name": {
        "main": "def use(x):\n import p.steps as s\n return s.scale(x)",
        "p/__init__": "",
        "p/steps": SCALE,
    },
    "relative import inside": {
        "main": "from p.a import use",
        "p/__init__": "",
        "p/a": "def use(x):\n from . import steps as s\n return s.scale(x)",
        "p/steps": SCALE,
    },
    "import in an inner function": {
        "main": "def use(x):\n def f():\n  from steps import scale\n  return scale\n return f()(x)",
        "steps": SCALE,
    },
    "import around a function": {
        "main": "def make():\n import steps\n return lambda x: steps.scale(x)\nuse = make()",
        "steps": SCALE,
    },
    "import of an import": {
        "main": "def use(x):\n from steps import scale\n return scale(x)",
        "steps": "from other import scale",
        "other": SCALE,
    },
    "import after a failed one": {
        "main": "def use(x):\n try: from nothing import scale\n except ImportError: from steps import scale\n"
        " return scale(x)",
        "steps": SCALE,
    },
    "function that a module makes": {
        "main": "def use(x):\n from steps import scale\n return scale(x)",
        "steps": "def __getattr__(name):\n import other\n return getattr(other, name)",
        "other": SCALE,
    },
    "module as an argument": {
        "main": "import steps\ndef f(m, x): return m.scale(x)\ndef use(x): return f(steps, x)",
        "steps": SCALE,
    },
    "imported module as an argument": {
        "main": "def f(m, x): return m.scale(x)\ndef use(x):\n import steps\n return f(steps, x)",
        "steps": SCALE,
    },
    "computed attribute of a module": {
        "main": "import steps\ndef use(x): return getattr(steps, 'sca' + 'le')(x)",
        "steps": SCALE,
    },
    "module in an object": {
        "main": "import steps\nclass A:\n def __init__(s): s.m = steps\n def __call__(s, x): return s.m.scale(x)\n"
        "use = A()",
        "steps": SCALE,
    },
    "module in a package": {
        "main": "import p\ndef use(x): return p.steps.scale(x)",
        "p/__init__": "from . import steps",
        "p/steps": SCALE,
    },
    "package without a file": {
        "main": "import folder.steps\ndef use(x): return folder.steps.scale(x)",
        "folder/steps": SCALE,
    },
    "such a package as an argument": {
        "main": "import folder.steps\ndef f(m, x): return m.steps.scale(x)\ndef use(x): return f(folder, x)",
        "folder/steps": SCALE,
    },
    "function put into a library": {
        "library": "",
        "main": f"import library\n{SCALE}\nlibrary.scale = scale\ndef use(x): return library.scale(x)",
    },
    "method of an instance": {
        "main": f"class A: pass\na = A()\n{SCALE.replace('(x)', '(s, x)')}\na.m = types.MethodType(scale, a)\n"
        "def use(x): return a.m(x)",
    },
    "method of another name": {
        "main": "class A: pass\ndef f(s, x): return x * NUMBER\nA.m = f\nL = [A().m]\ndef use(x): return L[0](x)"
    },
    "static method in a dict": {"main": "D = {'f': staticmethod(lambda x: x * NUMBER)}\ndef use(x): return D['f'](x)"},
    "code object": {"main": "C = compile('x * NUMBER', 'text', 'eval')\ndef use(x): return eval(C)"},
    "globals()": {"main": f"{SCALE}\ndef use(x): return globals()['sca' + 'le'](x)"},
    "attribute of a function": {"main": "def use(x): return x * use.n\nuse.n = NUMBER"},
    "metaclass": {"main": "class M(type):\n def __call__(cls, x): return x * NUMBER\nclass use(metaclass=M): pass"},
    "base class": {
        "main": "import base\nclass A(base.B): pass\nuse = A()",
        "base": "class B:\n def __call__(s, x): return x * NUMBER",
    },
    "dataclass": {"main": "@dataclasses.dataclass\nclass A:\n n: int = NUMBER\ndef use(x): return A().n * x"},
    "factory": {
        "main": "@dataclasses.dataclass\nclass A:\n n: list = dataclasses.field(default_factory=lambda: [NUMBER])\n"
        "def use(x): return A().n"
    },
    "enum": {"main": "class A(enum.Enum):\n n = NUMBER\ndef use(x): return A.n.value * x"},
    "named tuple": {"main": "class A(typing.NamedTuple):\n n: int = NUMBER\ndef use(x): return A().n * x"},
    "descriptor": {
        "main": "class D:\n def __init__(s, n): s.n = n\n def __get__(s, o, t): return s.n\n"
        "class A:\n d = D(NUMBER)\ndef use(x): return A().d"
    },
    "attribute with underscores": {"main": "class A:\n __n__ = NUMBER\ndef use(x): return A.__n__ * x"},
    "registry": {"main": f"R = {{}}\ndef reg(f): R['f'] = f\n@reg\n{SCALE}\ndef use(x): return R['f'](x)"},
    "set of functions": {"main": f"{SCALE}\nfunctions = {{scale}}\ndef use(x): return [f(x) for f in functions]"},
    "vectorize": {"main": "import numpy\n@numpy.vectorize\ndef use(x): return x * NUMBER"},
    "torch module": {
        "main": "import torch\nclass N(torch.nn.Module):\n def forward(s, x): return x * NUMBER\n"
        "use = torch.nn.Sequential(N())"
    },
    "inner code": {"main": "def use(x):\n def f(): return [y * NUMBER for y in [x]]\n return f()"},
    "coroutine": {"main": "async def f(x): return x * NUMBER\ndef use(x): return f(x)"},
    "read-only mapping": {"main": "C = types.MappingProxyType({'n': NUMBER})\ndef use(x): return C['n'] * x"},
    "memoryview": {"main": "C = memoryview(bytes([NUMBER]))\ndef use(x): return C[0] * x"},
    "context variable": {"main": "V = contextvars.ContextVar('v', default=NUMBER)\ndef use(x): return V.get() * x"},
    "weak reference": {
        "main": "class A: n = NUMBER\na = A()\na.m = NUMBER\nr = weakref.ref(a)\ndef use(x): return r().m"
    },
    "more than 50 calls deep": {
        "main": "def f0(x): return x * NUMBER\n"
        + "\n".join(f"def f{n + 1}(x): return f{n}(x)" for n in range(120))
        + "\ndef use(x): return f120(x)"
    },
}


@pytest.mark.parametrize("name", CODE)
def test_other_code_is_seen(name: str, write: Write) -> None:
    def seen(number: int) -> list[Any]:
        texts = {module: text.replace("NUMBER", str(number)) for module, text in CODE[name].items()}
        texts["main"] = HEAD + texts["main"]
        return all_seen(write(**texts).use)

    first, again, other = seen(2), seen(2), seen(7)
    assert first == again
    for was, now in zip(first, other, strict=True):
        assert was != now


def test_text_that_does_not_run_is_not_seen(write: Write) -> None:
    one = all_seen(write(main="def use(x): return x").use)
    assert all_seen(write(main="# a comment\n\ndef use(x):\n    return x  # x").use) == one


def test_code_that_is_loaded_counts_and_not_its_file(scripts: Scripts, tmp_path: pathlib.Path) -> None:
    """A job has imported its modules, and then its user edits one for the next job."""
    file = tmp_path / "steps.py"
    text = "class Data:\n def __len__(s): return 3\n def __getitem__(s, i): return i * NUMBER\n"
    text += "def build(): return [NUMBER]\n"
    file.write_text(text.replace("NUMBER", "2"))
    job = f"""
    sys.dont_write_bytecode = True
    sys.path.insert(0, {str(tmp_path)!r})
    import steps
    note("imported")
    await_("edited")
    print(headrace.cache("n", steps.build)[0], headrace.cache_samples(steps.Data(), "1M", keep="boot")[1])
    """
    first = scripts.start(job)
    scripts.await_("imported")
    file.write_text(text.replace("NUMBER", "7"))
    os.utime(file, (1, 1))
    scripts.note("edited")
    assert scripts.end(first)[0].split() == ["2", "2"]
    out, err = scripts.end(scripts.start(job))
    assert out.split() == ["7", "7"] and "it is built again, because build has changed" in err


# ---- packages ----


@pytest.mark.parametrize(
    "main",
    [
        "import library\ndef use(x): return library.f(x)",
        "from library import f\ndef use(x): return f(x)",
        "def use(x):\n import library\n return library.f(x)",
        "from library import C\nc = C()\ndef use(x): return c.f(x)",
        "from library import C\nclass use(C): pass",
    ],
)
def test_version_of_a_package_counts(main: str, write: Write) -> None:
    library = "def f(x): return x\nclass C:\n def f(s, x): return x\n"
    one = all_seen(write(main=main, library=library).use)
    assert all_seen(write(main=main, library=library + "# another file").use) == one
    other = all_seen(write(main=main, library=library, version="2").use)
    assert other != one and "the version of library" in other[0]


def test_package_under_another_name_has_a_version(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture").mkdir()
    (tmp_path / "picture/__init__.py").write_text("")
    (tmp_path / "Pillar-3.1.dist-info").mkdir()
    (tmp_path / "Pillar-3.1.dist-info/RECORD").write_text("picture/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert users_code.version_of("picture") == "Pillar-3.1"
    assert users_code.version_of("json") == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert users_code.version_of("nothing_of_this_name") == ""


def test_package_installed_from_a_folder_is_the_users(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    monkeypatch.setattr(
        users_code, "_library_folders", lambda: (f"{tmp_path}/0/installed/", f"{tmp_path}/1/installed/", "/h/")
    )
    main, url = "from library import scale\ndef use(x): return scale(x)", {"url": "file:///a", "dir_info": {}}
    texts = [SCALE.replace("NUMBER", number) for number in "27"]
    one, other = [all_seen(write(main=main, library=text, url=url).use) for text in texts]
    assert one != other
    monkeypatch.setattr(
        users_code, "_library_folders", lambda: (f"{tmp_path}/2/installed/", f"{tmp_path}/3/installed/", "/h/")
    )
    url = {"url": "file:///a.whl", "archive_info": {}}
    one, other = [all_seen(write(main=main, library=text, url=url).use) for text in texts]
    assert one == other


# ---- what does not change is not built again ----

STABLE = """
import abc, collections, enum, functools, torch, threading, typing
class Own(set): pass
class Flags(enum.Flag): a = 1; b = 2
class Base(abc.ABC):
    x: typing.Annotated[int, lambda v: v] = 1
    @abc.abstractmethod
    def one(self): ...
    @abc.abstractmethod
    def two(self): ...
class Thing(Base):
    def __init__(self):
        self.sets = [{"a", "b", "c", "d"}, {"k": frozenset("abcdef")}, Own("abcdef")]
        self.nested = {("x", frozenset("yz")), ("u", frozenset("vw"))}
        self.lock, self.event, self.flags = threading.Lock(), threading.Event(), Flags.a | Flags.b
        self.kinds = {Own, Flags}
    one = two = lambda self: 1
thing, missing = Thing(), object()
def build(): return thing.sets, thing.nested, {"p", "q", "r"}, missing, torch.float32
def called(x): return [1]
"""


def test_digests_do_not_depend_on_order_of_hashes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "stable.py").write_text(STABLE)
    code = (
        "import stable; from headrace._cache import digest, function\n"
        "name = lambda one: function.name_of_call('n', stable.called, (one,), {})\n"
        "seen, unknown, _ = digest.seen_in(stable.thing)\n"
        "print(sorted(digest.seen_by(stable.build, False).seen.items()), sorted(seen.items()),"
        " name([{'a', 'b', 'c'}]), name(frozenset('xyz')), unknown)"
    )
    found = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", code]
        found.add(subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1 and "[]" in found.pop()


# Each defines `use`, which changes something that it uses.
CHANGING: dict[str, str] = {
    "memo": "M = {}\ndef use():\n M[1] = 2\n return [1]",
    "memo of functions": "M = {}\ndef f(): return 1\ndef use():\n M[1] = f\n return [1]",
    "default": "def use(m={}):\n m[len(m)] = 1\n return [1]",
    "counter": "n = 0\ndef use():\n global n\n n += 1\n return [1]",
    "variable that comes": "def use():\n global late\n late = 3\n return [1]",
    "model that comes": "import torch\nmodel = None\ndef use():\n global model\n model = torch.nn.Linear(2, 2)\n"
    " return [1]",
    "attribute of a class": "class A: n = 0\ndef use():\n A.n += 1\n return [1]",
    "attribute that comes": "class A: pass\ndef use():\n A.n = 1\n return [1]",
    "attribute of a function": "def use():\n use.n = getattr(use, 'n', 0) + 1\n return [1]",
    "closure": "def make():\n n = 0\n def use():\n  nonlocal n\n  n += 1\n  return [1]\n return use\nuse = make()",
    "generator": "import random\nG = random.Random(0)\ndef use(): return [G.random()]",
    "iterator": "import itertools\nC = itertools.count()\ndef use(): return [next(C)]",
    "object": "class A:\n n = 0\n def __call__(s):\n  s.n += 1\n  return [1]\nuse = A()",
    "method": "class A:\n n = 0\n def m(s):\n  s.n += 1\n  return [1]\nuse = A().m",
    "method of a new object": "class A:\n def m(s):\n  s.n = 1\n  return [1]\nmake = A\n",
    "partial": "import functools\nM = {}\ndef f(m):\n m[1] = 1\n return [1]\nmake = lambda: functools.partial(f, M)",
    "list in order": "L = [2, 1]\ndef use():\n L.sort()\n return L",
    "file": "def use():\n open('out.txt', 'a').write('x')\n return [1]",
    "folder": "import os\ndef use():\n os.makedirs('out/a', exist_ok=True)\n return [1]",
    "array into a folder": "import os, numpy\ndef use():\n os.makedirs('out', exist_ok=True)\n return numpy.zeros(3)",
    "import": "def use():\n import json, other\n other.memo[1] = 1\n return [1]",
}


@pytest.mark.parametrize("name", CHANGING)
def test_builder_is_not_run_again_for_its_own_changes(
    name: str, write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = set()
    for _ in range(2):  # the second import is as that of another process
        main = write(main=CHANGING[name], other="memo = {}")
        for _ in range(3):
            use = main.make() if hasattr(main, "make") else main.use
            use = use.m if name == "method of a new object" else use
            headrace.cache("n", use)
            ids.add(headrace.cache.info("n").id)
    assert len(ids) == 1


def test_own_changes_of_a_builder_are_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    memo: dict[int, int] = {}

    def build() -> list[int]:
        memo[len(memo)] = 1
        return [1]

    for _ in range(3):
        headrace.cache("n", build)
    assert capfd.readouterr().err.count("building it changes") == 1
    memo["user"] = 5  # type: ignore[index]
    headrace.cache("n", build)
    assert "it is built again, because" in capfd.readouterr().err


def test_forked_process_takes_what_was_built(scripts: Scripts) -> None:
    out, _ = scripts.end(
        scripts.start("""
        memo = {}
        def build():
            memo[len(memo)] = 1
            return [1]
        headrace.cache("n", build)
        print(headrace.cache.info("n").id, flush=True)
        pid = os.fork()
        if pid == 0:
            headrace.cache("n", build)
            print(headrace.cache.info("n").id, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        """)
    )
    assert len(set(out.split())) == 1 and len(out.split()) == 2


# ---- what is not seen is said ----

UNSEEN: dict[str, tuple[dict[str, str], str]] = {
    "eval": ({"main": "def use(x): return eval('f(x)')"}, r"what eval\(\) in use leads to"),
    "import_module": (
        {"main": "import importlib\ndef use(x): return importlib.import_module('o' + 's')"},
        "what importlib.import_module in use leads to",
    ),
    "import_module inside": (
        {"main": "def use(x):\n from importlib import import_module\n return import_module('o' + 's')"},
        "what importlib.import_module in use leads to",
    ),
    "import_module as a variable": (
        {"main": "from importlib import import_module as load\ndef use(x): return load('o' + 's')"},
        r"what load\(\) in use leads to",
    ),
    "sys.modules": (
        {"main": "import sys\ndef use(x): return sys.modules['o' + 's']"},
        "what sys.modules in use leads to",
    ),
    "attribute that a module makes": (
        {"main": "import lazy\ndef use(x): return lazy.f(x)", "lazy": "def __getattr__(name): return abs"},
        "what __getattr__ of the module lazy gives",
    ),
    "import that fails": (
        {"main": "def use(x):\n from broken import f\n return f(x)", "broken": "raise SystemExit"},
        r"what use imports from broken \(SystemExit\)",
    ),
    "file": ({"main": "import os\nF = open(os.devnull)\ndef use(x): return F"}, "F, which cannot be compared,"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_code_that_is_not_seen_is_said_once(name: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(warn, "say", said.append)
    monkeypatch.setattr(unfollowed, "_told", set())
    texts, expected = UNSEEN[name]
    use = write(**texts).use
    for _ in range(2):
        digest.seen_by(use, True)
    assert said == []
    for _ in range(2):
        digest.seen_by(use, False)
    (line,) = said
    assert re.search(f"a change of {expected} is not seen; give version=", line)


def test_workers_that_import_an_edited_file_keep_nothing(scripts: Scripts, tmp_path: pathlib.Path) -> None:
    """They would keep samples of the new code under the name of the old one."""
    file = tmp_path / "edited.py"
    text = "class Data:\n def __len__(s): return 3\n def __getitem__(s, i): return i * {}\n"
    job = f"""
    sys.dont_write_bytecode = True
    sys.path.insert(0, {str(tmp_path)!r})
    import multiprocessing, pickle, edited
    samples = headrace.cache_samples(edited.Data(), "1M", keep="boot")
    equal = pickle.dumps(samples)
    pathlib.Path({str(file)!r}).write_text({text.format(7)!r})
    pool = multiprocessing.get_context("spawn").Pool(1)
    print(samples.name == pickle.loads(equal).name, pool.apply(samples.__getitem__, (1,)), samples.report()["ready"])
    print(samples[1], samples.report()["ready"])
    pool.terminate()
    """
    file.write_text(text.format(2))
    out, err = scripts.end(scripts.start(job))
    assert out.split() == ["True", "7", "0", "2", "3"] and err.count(f"{file} was edited after") == 1


def test_common_words_are_not_said(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods may have the names of functions that lead anywhere, and an attribute may be computed."""
    said: list[str] = []
    monkeypatch.setattr(warn, "say", said.append)
    monkeypatch.setattr(unfollowed, "_told", set())
    text = """
    import sys, torch
    model = torch.nn.Linear(2, 2)
    def use(x, name="a"):
        model.eval(), model.compile(), list(model.modules()), sys.argv, getattr(x, name, None)
    """
    all_seen(write(main=text).use)
    assert said == []


# ---- relative paths ----


class Files:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


PATHS: dict[str, Callable[[], Any]] = {
    "text": lambda: Files(root="data"),
    "path": lambda: Files(root=pathlib.Path("data")),
    "point": lambda: Files(root="."),
    "bytes": lambda: Files(root=b"data"),
    "path of a point": lambda: Files(inner=[pathlib.Path()]),
    "up": lambda: Files(root="../data"),
    "pattern": lambda: Files(root="data/*.txt"),
    "list": lambda: Files(names=["data/a.txt"]),
    "pairs": lambda: Files(names=[("data/a.txt", 1)]),
    "dict": lambda: Files(names={"train": {"x": "data"}}),
    "dataset within": lambda: Files(dataset=Files(root="data")),
}


@pytest.fixture
def two_folders(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for name in ("one", "other"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/a.txt").write_text(name)
        found.append(tmp_path / name)
    (tmp_path / "data").mkdir()
    return found


@pytest.mark.parametrize("name", PATHS)
def test_relative_path_in_another_folder_is_another_one(
    name: str, two_folders: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder in (two_folders[0], two_folders[0], two_folders[1]):
        monkeypatch.chdir(folder)
        found.append(digest.seen_in(PATHS[name]()))
    assert found[0] == found[1] != found[2]


def test_values_that_are_no_paths_do_not_depend_on_the_folder(
    two_folders: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder in two_folders:
        monkeypatch.chdir(folder)
        data = Files(
            root=str(two_folders[0]), mode="train", words=["a", ".", "..", "x/y"], text="a\ndata", far=["data2/a"]
        )
        found.append(digest.seen_in(data))
    assert found[0] == found[1]


def test_builder_with_a_relative_path_is_built_in_each_folder(
    two_folders: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def constant() -> list[str]:
        return [pathlib.Path("data/a.txt").read_text()]

    def by_name(root: str) -> list[str]:
        return [pathlib.Path(root, "a.txt").read_text()]

    for number, ask in enumerate(
        (
            lambda: headrace.cache("constant", constant),
            lambda: headrace.cache("partial", functools.partial(by_name, "data")),
            lambda: headrace.cache.function("argument")(by_name)("data"),
        )
    ):
        found = []
        for folder in two_folders:
            monkeypatch.chdir(folder)
            found.append(ask()[0])
        assert found == ["one", "other"], number
        text = (
            "the working directory, where 'data/a.txt' begins,"
            if number == 0
            else "the working directory, where 'data'"
        )
        assert text in capfd.readouterr().err


# ---- arguments ----


@pytest.mark.parametrize("kind", ["function", "class", "object", "method", "partial", "list"])
def test_code_of_an_argument_counts(kind: str, write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    text = """
    import functools
    def function(x): return x * NUMBER
    class Class:
        def __call__(self, x): return x * NUMBER
        def method(self, x): return x * NUMBER
    def give(kind):
        return {
            "function": function, "class": Class, "object": Class(), "method": Class().method,
            "partial": functools.partial(function), "list": [function],
        }[kind]
    """

    @headrace.cache.function("scaled")
    def scaled(by: Any) -> list[int]:
        by = by[0] if isinstance(by, list) else by
        return [by()(3) if isinstance(by, type) else by(3)]

    assert scaled(write(main=text.replace("NUMBER", "2")).give(kind))[0] == 6
    assert scaled(write(main=text.replace("NUMBER", "2")).give(kind))[0] == 6
    assert "built again" not in capfd.readouterr().err
    assert scaled(write(main=text.replace("NUMBER", "7")).give(kind))[0] == 21
    assert "has changed" in capfd.readouterr().err
