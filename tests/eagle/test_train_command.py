"""`python -m examples.train_eagle --quick`: all stages on the real model, and again where they stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples.train_eagle.__main__ import main
from examples.train_eagle.answers import load_tasks
from examples.train_eagle.workshop import Workshop


@pytest.mark.model
def test_quick_run_makes_a_head_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--out", str(tmp_path / "head"), "--work", str(tmp_path / "work"), "--quick"]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert main(command) == 0
        shards = sorted((tmp_path / "work/answers").glob("train-*"))
        written = [path.stat().st_mtime_ns for path in shards]
        capsys.readouterr()
        assert main(command) == 0
        for begin, out in (("head", "other"), ("other", "third")):
            goes_on = ["--out", str(tmp_path / out), "--begin", str(tmp_path / begin), "--updates", "1"]
            assert main([*command, *goes_on]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "8 answers are there" in capsys.readouterr().err
    assert [path.stat().st_mtime_ns for path in shards] == written

    log = json.loads((tmp_path / "work/log.json").read_text())
    assert [entry["update"] for entry in log] == [1]
    head, other, third = (
        Workshop(tmp_path / "work").load_head(tmp_path / it) for it in ("head", "other", "third")
    )
    for before, after in ((head, other), (other, third)):
        # One update moves a weight by its learning rate at most, and what is random differs by far more.
        moved = {
            name: float((weight - after.get_parameter(name)).detach().abs().max())
            for name, weight in before.named_parameters()
        }
        assert moved["fc.weight"] > 0
        assert max(moved.values()) < 0.01
    assert len(head.draft_ids) == 8192
    assert (tmp_path / "head/model.safetensors").stat().st_size < 12_000_000
    assert sum(len(load_tasks(path)) for path in shards) == 8
