"""The folder of a pool: a folder of a run for each member, and checkpoints of those that train together.

pool.json                the way the pool is trained, which is kept when it is resumed
member-000/ …            what `train` writes for that member's spec (see `result`)
chunk-000/ …             the checkpoint of members that are under way together, named by the first of them
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from landscope.core.errors import SpecError
from landscope.core.files import LARGEST_DOCUMENT, read_regular
from landscope.core.json_text import parse_json
from landscope.core.plain_objects import TEXT, checked
from landscope.training.checkpoint import load_state, write_json
from landscope.training.folders import prepare_folder
from landscope.training.given import require_same
from landscope.training.pool_leaving import FAILED
from landscope.training.pool_state import ChunkState
from landscope.training.pool_ways import Way
from landscope.training.result import Trained, load_result
from landscope.training.sharing import rank
from landscope.training.spec import TrainingSpec

__all__ = ["PoolFolder"]


class PoolFolder:
    """Where the members of a pool are kept, or nowhere; a folder with runs of other specs is refused."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        specs: Sequence[TrainingSpec],
        given: Mapping[str, str],
        *,
        resume: bool,
    ) -> None:
        self._root = None if folder is None else Path(folder)
        self._specs, self.given = specs, given
        self.members: dict[int, Path] = {}
        if self._root is None:
            return
        if not resume:
            for old in self._root.glob("chunk-*"):
                shutil.rmtree(old)
            (self._root / "pool.json").unlink(missing_ok=True)
        for number, spec in enumerate(specs):
            home = self._root / f"member-{number:03d}"
            self.members[number] = prepare_folder(home, spec, resume=resume, writes=rank() == 0)

    def way(self) -> Way | None:
        """The way that the pool in this folder was trained so far."""
        path = None if self._root is None else self._root / "pool.json"
        if path is None or not path.is_file():
            return None
        try:
            return cast(Way, checked(parse_json(read_regular(path, LARGEST_DOCUMENT)), "a pool", {"way": TEXT})["way"])
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path} is damaged: {error}. Choose another folder, or begin anew with resume=False"
            ) from error

    def keep(self, way: Way) -> None:
        """Note the way."""
        if self._root is not None and rank() == 0:
            write_json(self._root / "pool.json", {"way": way})

    def finished(self, number: int, model: nn.Module) -> Trained | None:
        """The result of a member that is done or has failed."""
        if number not in self.members:
            return None
        result = load_result(self.members[number], self._specs[number], model, self.given)
        if result is None:
            return None
        return replace(result, finished=not result.stopped.startswith(FAILED))

    def chunk(self, first: int) -> Path | None:
        """The place for the checkpoint of a chunk, by its first member."""
        if self._root is None:
            return None
        path = self._root / f"chunk-{first:03d}"
        path.mkdir(exist_ok=True)
        return path

    def forget(self, first: int) -> None:
        """Remove the checkpoint of a chunk."""
        if self._root is not None:
            shutil.rmtree(self._root / f"chunk-{first:03d}", ignore_errors=True)

    def under_way(self, missing: Collection[int], device: torch.device) -> dict[int, ChunkState]:
        """The chunks that have a checkpoint, by the first member, with those of their members that are missing."""
        found: dict[int, ChunkState] = {}
        for path in sorted(self._root.glob("chunk-*")) if self._root is not None else ():
            state = load_state(path)
            if state is None:
                continue
            plain = cast(dict[str, Any], state[1])
            whole = ChunkState.restored(state[0], plain, device)
            rest = [at for at, number in enumerate(whole.numbers) if number in missing]
            if rest:
                self._require_given(path, plain)
                found[int(path.name.removeprefix("chunk-"))] = whole.take(rest)
        return found

    def _require_given(self, path: Path, plain: Mapping[str, Any]) -> None:
        if "given" in plain:
            require_same(path, plain["given"], self.given)
        elif self.given:
            told = "was written by an older version, which did not note its data: it goes on with the given data"
            warnings.warn(f"{path} {told}. If that is not its own, begin anew with resume=False", stacklevel=2)
