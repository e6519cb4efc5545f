"""Resuming into the folder of a finished run."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ampft.arguments import ClassifyArguments
from ampft.errors import AlreadyFinished, InputError
from ampft.files import describe_file
from ampft.runs import resume_point


def test_a_finished_run_on_other_data_is_refused(tmp_path, monkeypatch):
    paths = {f"{split}_file": tmp_path / f"{split}.csv" for split in ("train", "test")}
    for name, path in paths.items():
        path.write_text(f"text,label\n{name},a\n", encoding="utf-8")
    names = {name: str(path) for name, path in paths.items()}
    args = ClassifyArguments(**names, output_dir=str(tmp_path), resume_from_checkpoint="latest")
    record = {
        "status": "finished",
        "precision": {"requested": "fp32"},
        "arguments": asdict(args),
        "data": {"files": {str(path): describe_file(path).sha256 for path in paths.values()}},
    }
    monkeypatch.setattr(resume_point, "earlier_record", lambda folder: record)
    with pytest.raises(AlreadyFinished, match="nothing is trained"):
        resume_point.find_resume_point(args, "fp32")
    paths["test_file"].write_text("text,label\nanother,a\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"finished run on other data: .*test\.csv"):
        resume_point.find_resume_point(args, "fp32")
