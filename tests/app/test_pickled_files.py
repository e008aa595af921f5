"""A stranger's pickled file runs nothing and is refused in one line, without torch's advice to load it all the same."""

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy, tiny_model_folder
from rookworld_rlvr.training import checkpoint, diagnosis, saved_state

CPU = torch.device("cpu")


class Runs:
    """An object that runs a program when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._marker}",)


def pickled(path: Path) -> None:
    torch.save({"header": Runs(path.parent / "started")}, path)


def script(path: Path) -> None:
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(path))


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            (path.parent / name).write_bytes(b"\x80\x02.")
            archive.add(path.parent / name, name)
            (path.parent / name).unlink()


def damaged(path: Path) -> None:
    torch.save({"header": {"a": 1}}, path)
    content = bytearray(path.read_bytes())
    start = content.index(b"header")
    content[start - 12 : start + 8] = bytes(20)
    path.write_bytes(content)


def text(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\n")


def read_checkpoint(folder: Path) -> object:
    return checkpoint._read(folder)


def read_training(folder: Path) -> object:
    return saved_state.read_state(folder, {}, CPU)


def read_batch(folder: Path) -> object:
    return diagnosis.load_fault(folder / "step-1.pt")


def read_model(folder: Path) -> object:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_folder() / name, folder)
    return load_policy(ModelConfig(path=str(folder)), CPU, Precision.fp32)


def read_adapter(folder: Path) -> object:
    settings = f'{{"peft_type": "LORA", "base_model_name_or_path": "{tiny_model_folder()}", "task_type": "CAUSAL_LM"}}'
    (folder / "adapter_config.json").write_text(settings)
    return load_policy(ModelConfig(path=str(folder)), CPU, Precision.fp32)


READERS = [
    (checkpoint.STATE_FILE, read_checkpoint),
    (saved_state.STATE_FILE, read_training),
    ("step-1.pt", read_batch),
    ("pytorch_model.bin", read_model),
    ("adapter_model.bin", read_adapter),
]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
@pytest.mark.parametrize("write", [pickled, script, tar, damaged, text])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.load:UserWarning")
def test_pickled_file_is_refused_without_torchs_advice(
    name: str, read: Callable[[Path], object], write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(UserError) as refusal:
        read(tmp_path)
    line = str(refusal.value)
    assert "\n" not in line and "weights_only" not in line and "Re-running" not in line and "\x1b" not in line
    assert not (tmp_path / "started").exists() and str(tmp_path) in line
