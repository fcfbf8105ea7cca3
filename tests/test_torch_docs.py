"""The code on docs/pytorch.md runs, one block after another in processes of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'sphere-rl[torch]'")

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytorch.md").read_text(), flags=re.DOTALL)


def test_the_page_has_code():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("block", BLOCKS, ids=["own loop", "attach", "environments"])
def test_a_block_runs(block):
    code = f"import warnings; warnings.simplefilter('error')\n{block}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.returncode == 0, found.stderr
    assert "nan" not in found.stdout
