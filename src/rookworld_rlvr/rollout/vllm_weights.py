"""The trainer's weights as a vLLM sampler should have them. A server reads them from a folder that both can read."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from ..files import replacing
from ..model.weights import checksum, checksum_of
from .generator import GeneratorError
from .vllm_worker import WEIGHTS_FILE


@dataclass(frozen=True, slots=True)
class ExpectedWeights:
    """The weights that a sampler should have."""

    checksum: str
    """Checksum of the trainer's weights in their own type."""
    rounded: str
    """Checksum of the trainer's weights rounded to the sampler's type."""
    names: tuple[str, ...]

    def checksum_for(self, held: str) -> str:
        """Return the trainer's checksum if `held` is that of the rounded weights, otherwise `held`."""
        return self.checksum if held == self.rounded else held


def expected_weights(model: PreTrainedModel, dtype: torch.dtype) -> ExpectedWeights:
    """Return the weights that a sampler of this dtype should have after a sync."""
    named = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    full = checksum(model)
    same = all(parameter.dtype == dtype for _, parameter in named)
    rounded = full if same else checksum_of((name, parameter.to(dtype)) for name, parameter in named)
    return ExpectedWeights(full, rounded, tuple(name for name, _ in named))


def require_weights(expected: ExpectedWeights, held: str) -> None:
    """Raise GeneratorError if the sampler holds other weights."""
    if held != expected.rounded:
        raise GeneratorError(f"vllm: expected the trainer's weights {expected.rounded}, the sampler has {held}")


@dataclass(frozen=True, slots=True)
class WeightOwner:
    """Trainer that a server's weights belong to, as one of its ranks sees it."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    syncs_weights: bool = True
    """True if this rank sends the weights to the servers; the other ranks wait until rank 0 has done so."""


class WeightSnapshot:
    """Copy of the trainer's weights that its servers should have, in a file, independent of further training.

    Each set of weights has a token and a checksum.
    """

    def __init__(self, owner: WeightOwner, dtype: torch.dtype, sync_folder: str) -> None:
        """Keep nothing yet. The file's folder is below `sync_folder`; if empty, below the temporary folder.

        Raises GeneratorError if `sync_folder` is no folder.
        """
        if sync_folder and not Path(sync_folder).is_dir():
            raise GeneratorError(f"generator.vllm.sync_folder: expected a folder, got {sync_folder!r}")
        self.owner, self._dtype = owner, dtype
        self.expected = ExpectedWeights("", "", ())
        self._count = 0
        self._folder = TemporaryDirectory(prefix="rookworld-weights-", dir=sync_folder or None)

    @property
    def folder(self) -> str:
        """Folder of the weights' file."""
        return self._folder.name

    @property
    def token(self) -> str:
        """Name of this set of weights, which begins with the trainer's name."""
        return f"{self.owner.name}:{self._count}"

    def keep(self, model: PreTrainedModel) -> None:
        """Write the model's weights. A rank that does not synchronise them keeps only their checksum."""
        self.expected = expected_weights(model, self._dtype)
        self._count += 1
        if self.owner.syncs_weights:
            _write(model, Path(self.folder) / WEIGHTS_FILE)


def _write(model: PreTrainedModel, path: Path) -> None:
    """Write the weights. A server that is restarted meanwhile reads either the old file or the new one."""
    named = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    with replacing(path) as writing:
        save_file(named, writing)
