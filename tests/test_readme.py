"""The Python of the README runs, block after block."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_recipes_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    scope = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
