"""TD3 and TD3+BC against recorded updates of the programs that they come from (sphere/golden/README.md)."""

import numpy as np
import pytest

from sphere.cli.main import main
from sphere.cli.verify import GOLDEN
from sphere.cli.verify_td3 import verify_td3

FILES = {"td3": "td3_update.npz", "td3-bc": "td3bc_update.npz"}


@pytest.mark.parametrize("file", FILES.values())
def test_every_array_after_the_updates_is_within_its_target(file):
    found = verify_td3(GOLDEN / file)
    with np.load(GOLDEN / file) as recorded:
        wanted = {name for name in recorded.files if "_after/" in name}
        losses = {name for name in recorded.files if "_loss_" in name}
    assert {f"{one.case}/{one.name}".removeprefix("td3-bc/") for one in found} == wanted | losses
    far = [(one.case, one.name, one.found) for one in found if not one.passed]
    assert not far
    assert {one.target for one in found if "_after/" in one.name} == {2e-6}


@pytest.mark.parametrize("name", FILES)
def test_verify_takes_them_by_name_and_by_file_and_judges(name, tmp_path, capsys):
    assert main(["verify", name]) == 0
    assert "within their targets" in capsys.readouterr().out
    with np.load(GOLDEN / FILES[name]) as file:
        arrays = {key: file[key] for key in file.files if not key.startswith("layernorm/")}
    wrong = next(key for key in arrays if "critic_target_after/" in key and key.endswith("bias"))
    arrays[wrong] = arrays[wrong] + np.float32(1e-5)
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(SystemExit) as end:
        main(["verify", "update", str(tmp_path / "wrong.npz")])
    assert end.value.code == 1
    assert "TOO FAR" in capsys.readouterr().out
    del arrays[wrong]
    np.savez(tmp_path / "lacking.npz", **arrays)
    assert main(["verify", "update", str(tmp_path / "lacking.npz")]) == 1
    assert "lacks the array" in capsys.readouterr().err
