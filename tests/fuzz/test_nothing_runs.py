"""No line of the package unpickles, evaluates, extracts or fetches what somebody else wrote: the source is searched for it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lbdrop

ROOT = Path(lbdrop.__file__).parent.parent
SOURCES = [path for folder in ("lbdrop", "experiments", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]

MODULES = ("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "jsonpickle")
BUILTINS = ("eval", "exec", "compile", "__import__")
CALLS = ("os.system", "os.popen", "torch.hub.load", "pl.DataFrame.deserialize", "tempfile.mktemp")
FETCHING = ("urlopen", "urlretrieve", "load_state_dict_from_url", "hf_hub_download", "snapshot_download", "from_pretrained",
            "download_url", "fetch_openml")  # fmt: skip
HARMLESS = {
    # A restricted reader, whose find_class names nothing but arrays; see test_cifar10_damage.py.
    "experiments/vision/cifar10.py": {"pickle.Unpickler", "urllib.request.urlopen, which fetches"},
    # Reads what the peer wrote a moment before, in a folder of its own.
    "benchmarks/recommender_contestants.py": {"torch.load without weights_only=True"},
    # Reads in memory what it wrote a moment before.
    "benchmarks/zoo/examine.py": {"pickle.dumps", "pickle.loads"},
    # The safe loader makes numbers, text, lists and dicts alone.
    "benchmarks/audit.py": {"yaml.safe_load"},
    # Makes the forgeries, reads none of them.
    "benchmarks/fuzz_changes.py": {"pickle.dumps"},
    "benchmarks/fuzz_images.py": {"pickle.dumps"},
}


def faults(tree: ast.AST, harmless: set[str]) -> Iterator[tuple[int, str]]:
    """Line and reason of everything that could run what a file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield node.lineno, f"from {node.module} import"
        if isinstance(node, ast.Attribute) and _name(node).partition(".")[0] in MODULES and _name(node) not in harmless:
            yield node.lineno, _name(node)
        if isinstance(node, ast.Import) and not harmless:
            yield from ((node.lineno, f"import {each.name}") for each in node.names if each.name in MODULES)
        if isinstance(node, ast.Call):
            yield from ((node.lineno, reason) for reason in _calls(node) if reason not in harmless)


def _calls(call: ast.Call) -> Iterator[str]:
    name, last = _name(call.func), _name(call.func).rpartition(".")[2]
    given = {each.arg: each.value.value for each in call.keywords if isinstance(each.value, ast.Constant)}
    named = {each.arg for each in call.keywords}
    if name in BUILTINS or name in CALLS:
        yield name
    if name == "torch.load" and given.get("weights_only") is not True:
        yield "torch.load without weights_only=True"
    if "ckpt_path" in named and given.get("weights_only") is not True:
        yield "ckpt_path without weights_only=True"
    if last == "load_from_checkpoint" and given.get("weights_only") is not True:
        yield "load_from_checkpoint without weights_only=True"
    if "allow_pickle" in named and given.get("allow_pickle") is not False and name in ("np.load", "numpy.load"):
        yield "np.load with allow_pickle"
    if last in ("extractall", "extract") and given.get("filter") != "data" and not name.endswith(".str.extract"):
        yield f"{last} without filter='data'"
    if last == "unpack_archive":
        yield last
    if last in FETCHING or name.startswith(("requests.", "httpx.", "aiohttp.")):
        yield f"{name}, which fetches"
    if name == "open" and call.args and isinstance(call.args[0], ast.Constant) and "/tmp" in str(call.args[0].value):
        yield "a temporary file of a known name"
    if given.get("shell") is True:
        yield "shell=True"
    if given.get("trust_remote_code") is True:
        yield "trust_remote_code=True"


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_no_line_runs_what_a_file_says() -> None:
    found = []
    for path in SOURCES:
        where = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{where}:{line}: {reason}" for line, reason in faults(tree, HARMLESS.get(where, set()))]
    assert not found
    assert len(SOURCES) > 100


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "trainer.fit(module, ckpt_path=last)",
        "Model.load_from_checkpoint(path)",
        "tar.extractall(folder)",
        "tar.extractall(folder, filter='fully_trusted')",
        "shutil.unpack_archive(path)",
        "subprocess.run(words, shell=True)",
        "os.system(words)",
        "yaml.load(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "urllib.request.urlopen('https://example.org')",
        "requests.get(url)",
        "tempfile.mktemp()",
        "open('/tmp/state', 'w')",
    ],
)
def test_search_finds(line: str) -> None:
    assert list(faults(ast.parse(line), set()))


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "re.compile(pattern)",
        "model.eval()",
        "tar.extractall(folder, filter='data')",
        "trainer.fit(module, ckpt_path=last, weights_only=True)",
    ],
)
def test_search_leaves_alone(line: str) -> None:
    assert not list(faults(ast.parse(line), set()))


def test_only_reader_of_pickles_chooses_what_they_may_name() -> None:
    tree = ast.parse((ROOT / "experiments/vision/cifar10.py").read_text(encoding="utf-8"))
    (reader,) = (
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.ClassDef) and any(_name(b) == "pickle.Unpickler" for b in n.bases)
    )
    assert "find_class" in {each.name for each in reader.body if isinstance(each, ast.FunctionDef)}
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _name(node).startswith("pickle.")]
    assert len(uses) == 1  # that base and nothing else


def test_only_download_is_over_https_and_checked() -> None:
    from experiments.vision import cifar10

    for release in (each for each in vars(cifar10).values() if isinstance(each, cifar10.Release)):
        assert all(each.url.startswith("https://") and len(each.sha256) == 64 for each in release.archives)
    source = (ROOT / "experiments/vision/cifar10.py").read_text(encoding="utf-8")
    assert source.count("urlopen(") == 1
    assert source.index("urlopen(") < source.index("if got != archive.sha256") < source.index("beside.replace(target)")
