"""The package's shape: who may import whom, what imports without Triton, what is documented."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rl_triton_jax

PACKAGE = Path(rl_triton_jax.__file__).parent
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}

# layer -> the layers that it may import, besides itself
LAYERS = {
    "config": (),
    "rules": (),
    "kernels": (),
    "recurrences": ("rules",),
    "launch": ("config", "kernels"),
    "primitives": ("config", "rules", "recurrences", "launch"),
    "ops": ("config", "recurrences", "primitives"),
    "reference": ("config", "ops"),
    "__init__": ("config", "ops", "reference"),
    "selfcheck": ("__init__", "config"),
    "__main__": ("__init__", "config", "launch", "selfcheck"),
}
# package -> the layers that alone may import it, and those that may not
ONLY = {"jax_triton": ("launch",), "triton": ("kernels", "launch")}
NEVER = {"jax": ("kernels",)}

OPERATIONS = [
    name
    for name in rl_triton_jax.__all__
    if inspect.isfunction(getattr(rl_triton_jax, name)) and name != "default_implementation"
]


def layer(module: str) -> str:
    """Of a module of the package, by dotted name."""
    _, _, rest = module.partition(".")
    return rest.split(".")[0] or "__init__"


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "rl_triton_jax":  # `from rl_triton_jax import config`
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                names.add(node.module)
    return names


@pytest.mark.parametrize("file", FILES)
def test_imports_go_one_way(file):
    own = Path(file).parts[0].removesuffix(".py")
    imported = imports(FILES[file])
    ours = {layer(name) for name in imported if name.split(".")[0] == "rl_triton_jax"}
    assert ours <= {own, *LAYERS[own]}
    packages = {name.split(".")[0] for name in imported}
    for package, layers in ONLY.items():
        assert package not in packages or own in layers
    for package, layers in NEVER.items():
        assert package not in packages or own not in layers


def test_layers_form_an_order():
    """No layer may import one that stands behind it in the table."""
    order = list(LAYERS)
    for name, allowed in LAYERS.items():
        assert all(order.index(other) < order.index(name) for other in allowed)


@pytest.mark.parametrize("file", FILES)
def test_no_file_is_long(file):
    lines = len(FILES[file].read_text().splitlines())
    assert lines <= 300


# γ = 1/2, λ = 1: the first advantage is 1 + 1/2 + 1/4 less its own value.
COMPUTE = """
import jax
import jax.numpy as jnp
import rl_triton_jax

def first_advantage(values):
    rewards, flags = jnp.ones((3, 2)), jnp.zeros((3, 2), bool)
    options = dict(bootstrap_value=0.0, gamma=0.5, lambda_=1.0)
    return rl_triton_jax.gae(rewards, values, flags, **options).advantages[0, 0]

value, gradient = jax.jit(jax.value_and_grad(first_advantage))(jnp.zeros((3, 2)))
assert value == 1.75, value
assert gradient[0, 0] == -1.0, gradient
"""


def run(code: str) -> None:
    command = [sys.executable, "-c", code]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PACKAGE.parent, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_computes_without_triton():
    block = "import sys\nsys.modules['triton'] = sys.modules['jax_triton'] = None\n"
    run(block + COMPUTE)


def test_does_not_import_triton_on_the_cpu():
    run(COMPUTE + "import sys\nassert not {'triton', 'jax_triton'} & set(sys.modules)\n")


@pytest.mark.parametrize("name", rl_triton_jax.__all__)
def test_public_names_exist_and_are_documented(name):
    assert inspect.getdoc(getattr(rl_triton_jax, name))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_document_every_argument(name):
    """Sections Args, Returns, Raises, Example, and every parameter in Args."""
    function = getattr(rl_triton_jax, name)
    sections = re.split(r"^(Args|Returns|Raises|Example):\n", inspect.getdoc(function), flags=re.M)
    titles, texts = sections[1::2], sections[2::2]
    assert titles == ["Args", "Returns", "Raises", "Example"]
    (names,) = (
        [n for line in re.findall(r"^  (\w[\w, ]*):", text, re.M) for n in line.split(", ")]
        for title, text in zip(titles, texts, strict=True)
        if title == "Args"
    )
    assert sorted(names) == sorted(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", OPERATIONS)
def test_reference_has_the_same_operations(name):
    function, public = getattr(rl_triton_jax.reference, name), getattr(rl_triton_jax, name)
    assert inspect.signature(function) == inspect.signature(public)
    assert name in rl_triton_jax.reference.__all__
