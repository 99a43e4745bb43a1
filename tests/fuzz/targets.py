"""What reads files, each with whole files to begin from and the way to spoil them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse
import torch
from malformed import REPORT, SPEC, record
from mutations import spoil_bytes, spoil_json, spoil_text
from safetensors.torch import save

from landscope.core.weights import read_weights
from landscope.data.files import read
from landscope.data.formats import parse_idx, parse_npy, parse_npz, parse_python
from landscope.data.safe_pickle import loads
from landscope.data.sets.skull_volumes import parse_nifti
from landscope.data.sets.svhn import parse_svhn
from landscope.measures import Report
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.specs.documents import read_spec
from landscope.specs.schema import parse
from landscope.studies.record import Record
from landscope.studies.spec import StudySpec
from landscope.studies.store import run_folder
from landscope.studies.store.run_folder import RunFolder
from landscope.training.loop.folder import read_tensors, write_tensors
from landscope.training.spec import TrainingSpec

__all__ = ["TARGETS", "Target"]

Spoil = Callable[[bytes, random.Random], bytes]

YAML = b"""\
name: digits
training:
  data: {name: digits, pixels: standard}
  model: {name: mlp, widths: [16, 16], activation: relu}
  epochs: 2
  batch_size: 32
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 5e-4}
  schedule: {name: cosine, warmup: 0.2}
axes:
  batch: {small: {batch_size: 16}, large: {batch_size: 64}}
  sam: {off: {}, on: {sam: {rho: 0.05}}}
seeds: 2
measuring:
  checkpoints: [final]
  splits:
    train: [loss, l2_norm]
    test: [loss, error, ece]
"""
TOML = b"""\
epochs = 2
batch_size = 32
seed = 3
snapshots = [1, 5]

[data]
name = "circles"

[model]
name = "mlp"
widths = [4, 4]

[optimizer]
name = "adam"
lr = 1e-3
"""


@dataclass(frozen=True)
class Target:
    """A reader of a file with this name, whole contents, and a way to spoil them."""

    name: str
    read: Callable[[Path], object]
    whole: tuple[bytes, ...]
    spoil: Spoil = spoil_bytes


def _written(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _stream(write: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def _record(path: Path) -> Record:
    """The content as a record that fits its checksum."""
    run = RunFolder(path.parent)
    body = b'"record": ' + path.read_bytes() + b"\n}\n"
    run.path("record.json").write_bytes(run_folder._header(run.key, body) + body)
    return Record.from_dict(run.record())


def _within(spoil: Spoil) -> Spoil:
    """Spoil what is zipped, and sometimes the zip."""

    def spoiled(content: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return spoil_bytes(content, rng)
        return gzip.compress(spoil(gzip.decompress(content), rng), compresslevel=1)

    return spoiled


def _nifti() -> bytes:
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, 5, 4, 3, 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, 4, 16)
    struct.pack_into("<8f", header, 76, 1, 2.0, 3.0, 4.0, 0, 0, 0, 0)
    struct.pack_into("<3f", header, 108, 352, 2.0, 1.0)
    header[344:348] = b"n+1\0"
    return bytes(header) + np.arange(60, dtype="<i2").tobytes()


def _bundle(path: Path) -> Path:
    return save_bundle(Bundle("fam", "skulls", "tiny", parse(StudySpec, SPEC), (record(),)), path)


_IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)
_BATCH = {"data": _IMAGES.reshape(2, -1), "labels": [1, 2], "filenames": ["a.png", "b.png"]}
_ROWS = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
_WEIGHTS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.ones(2)}
_ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

TARGETS = {
    "study in YAML": Target("study.yaml", lambda p: read_spec(StudySpec, p), (YAML,), spoil_text),
    "study in JSON": Target("study.json", lambda p: read_spec(StudySpec, p), (json.dumps(SPEC).encode(),), spoil_json),
    "training in TOML": Target("training.toml", lambda p: read_spec(TrainingSpec, p), (TOML,), spoil_text),
    "record": Target("text", _record, (json.dumps(record().to_dict()).encode(),), spoil_json),
    "bundle": Target("bundle.json.gz", load_bundle, (_written(_bundle),), _within(spoil_json)),
    "report": Target("report.json", Report.load, (REPORT.to_json().encode(),), spoil_json),
    "npy": Target(
        "a.npy", lambda p: parse_npy(read(p), p),
        (_stream(lambda s: np.save(s, _ARRAY)), _stream(lambda s: np.save(s, np.asfortranarray(_ARRAY)))),
    ),
    "npz": Target("a.npz", lambda p: parse_npz(read(p), p, "a"), (_stream(lambda s: np.savez_compressed(s, a=_ARRAY)),)),
    "NIfTI": Target("a.nii.gz", lambda p: parse_nifti(read(p), p), (gzip.compress(_nifti()),), _within(spoil_bytes)),
    "idx": Target("labels", lambda p: parse_idx(read(p), p, 1), (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]),)),
    "mat": Target(
        "a.mat", lambda p: parse_svhn(read(p), p),
        tuple(
            _stream(lambda s, z=z: scipy.io.savemat(s, {"X": _IMAGES, "y": [[1], [10]]}, do_compression=z))
            for z in (False, True)
        ),
    ),
    "pickled batch": Target(
        "batch", lambda p: parse_python(read(p), p, "labels", 10), tuple(pickle.dumps(_BATCH, n) for n in range(6))
    ),
    "pickled rows": Target(
        "rows", lambda p: loads(read(p), p),
        tuple(pickle.dumps([_ROWS, (1, {"a": _ARRAY})], n) for n in range(2, 6)),
    ),
    "safetensors": Target("net.safetensors", read_weights, (save(_WEIGHTS),)),
    "state dict": Target(
        "net.pt", read_weights,
        tuple(
            _stream(lambda s, z=z: torch.save(_WEIGHTS, s, _use_new_zipfile_serialization=z)) for z in (True, False)
        ),
    ),
    "checkpoint": Target("state", read_tensors, (_written(lambda p: write_tensors(p, _WEIGHTS, {"epoch": 1})),)),
}  # fmt: skip
