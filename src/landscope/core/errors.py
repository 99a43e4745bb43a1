"""Every error that Landscope raises on purpose, in one tree.

    LandscopeError
    ├── ProbeError                  what was given cannot be measured
    │   ├── DataError
    │   │   ├── EmptyDataError          no samples
    │   │   ├── OneShotDataError        an iterator that can be read once only
    │   │   ├── ChangingDataError       two passes gave different samples
    │   │   ├── MissingTargetsError     batches without targets
    │   │   └── LabelRangeError         class labels outside 0 … C−1
    │   ├── ModelError
    │   │   ├── NoParametersError       nothing to differentiate with respect to
    │   │   ├── NonFiniteWeightsError   NaN or infinity among weights or buffers
    │   │   └── StochasticModelError    dropout left on, or other noise in the forward pass
    │   └── LossError
    │       ├── NonFiniteLossError      NaN or infinite loss
    │       └── LossReductionError      neither per sample, nor a mean, nor a sum over samples
    ├── DataFileError               a file of a data set
    │   ├── MissingFileError            not where it was looked for
    │   ├── DamagedFileError            truncated, altered, or not of its format
    │   ├── UnsafeFileError             a pickle or archive that asks for more than data
    │   └── DownloadError               could not be fetched
    ├── NotApplicableError          this quantity is not defined for this model, loss or data
    ├── DifferentiationError        an operation cannot be differentiated as often as needed
    ├── OperandError                a vector of the wrong shape, type or device
    ├── NonFiniteProductError       an operator's product holds NaN or infinity
    ├── BudgetSpentError            the seconds or passes that were allowed are used up
    ├── OutOfMemoryError            not even one sample fits
    ├── LostProcessError            another of the processes that work together failed or ended
    ├── CheckpointError             weights that cannot be read, or do not fit the model
    ├── SpecError                   a spec or setting of the wrong type, out of range, or at odds with another
    ├── TrainingError               a training run cannot start or continue
    │   ├── NonFiniteTrainingError      the loss or the weights became NaN or infinite
    │   └── StepOrderError              the parts of a step were called out of order
    ├── StudyError                  a study cannot continue
    │   ├── StoreError                  a file of the store cannot be written, or is not what was written
    │   │   ├── StoreFullError              no room is left where the store lies
    │   │   └── StoreGoneError              the store's folder was there and is not any more
    │   ├── ClaimError                  another process works on the run
    │   ├── RunFailedError              a run raised an error, or its process died
    │   └── RunStoppedError             a run was asked to stop; it can be resumed
    ├── UnknownNameError            a name that no registry entry, parameter or layer has
    └── MissingExtraError           an optional package is not installed

Every class also derives from the built-in exception that a caller would expect (`ValueError`, `KeyError`, …). A message
says what was expected, what was found, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LandscopeError(Exception):
    """Base of all errors that Landscope raises on purpose."""


class ProbeError(LandscopeError, ValueError):
    """What was given cannot be measured."""


class DataError(ProbeError):
    """The data cannot be used."""


class EmptyDataError(DataError):
    """The data holds no samples."""


class OneShotDataError(DataError):
    """The data can be read once only; every measure needs several passes."""


class ChangingDataError(DataError):
    """Two passes over the data gave different samples."""


class MissingTargetsError(DataError):
    """The batches hold inputs only."""


class LabelRangeError(DataError):
    """Class labels outside 0 … C−1."""


class ModelError(ProbeError):
    """The model cannot be measured."""


class NoParametersError(ModelError):
    """There is nothing to differentiate with respect to."""


class NonFiniteWeightsError(ModelError):
    """NaN or infinity among the weights or buffers."""


class StochasticModelError(ModelError):
    """The forward pass draws random numbers: dropout left on, or noise."""


class LossError(ProbeError):
    """The loss cannot be used."""


class NonFiniteLossError(LossError):
    """The loss is NaN or infinite at the given parameters."""


class LossReductionError(LossError):
    """The loss is neither per sample, nor a mean, nor a sum over samples."""


class DataFileError(LandscopeError):
    """A file of a data set cannot be used; the message names it."""


class MissingFileError(DataFileError, FileNotFoundError):
    """A file is not where it was looked for."""


class DamagedFileError(DataFileError, ValueError):
    """A file is truncated, altered, or not of its format."""


class UnsafeFileError(DataFileError, ValueError):
    """A pickle or archive asks for more than data: code, or files outside its folder."""


class DownloadError(DataFileError, ConnectionError):
    """A file could not be fetched."""


class NotApplicableError(LandscopeError, TypeError):
    """The quantity is not defined for this model, loss or data."""


class DifferentiationError(LandscopeError, RuntimeError):
    """An operation of the model cannot be differentiated as often as the quantity needs."""


class OperandError(LandscopeError, ValueError):
    """A vector or block of the wrong shape, type or device."""


class NonFiniteProductError(LandscopeError, FloatingPointError):
    """The product of an operator with a finite vector holds NaN or infinity."""


class BudgetSpentError(LandscopeError, TimeoutError):
    """The seconds or passes that were allowed are used up."""


class OutOfMemoryError(LandscopeError, MemoryError):
    """Not even the smallest piece of work fits into memory."""


class LostProcessError(LandscopeError, RuntimeError):
    """Another of the processes that work together failed or ended; nothing that needs all of them can go on."""


class CheckpointError(LandscopeError, ValueError):
    """Weights that cannot be read, or do not fit the model."""


class SpecError(LandscopeError, ValueError):
    """A spec or a setting of the wrong type, outside its range, or at odds with another."""


class TrainingError(LandscopeError, RuntimeError):
    """A training run cannot start or continue."""


class NonFiniteTrainingError(TrainingError, FloatingPointError):
    """The loss or the weights became NaN or infinite while training."""


class StepOrderError(TrainingError):
    """The parts of a step were called out of order."""


class StudyError(LandscopeError, RuntimeError):
    """A study cannot continue."""


class StoreError(StudyError, OSError):
    """A file of the store cannot be written, or is not what was written."""


class StoreFullError(StoreError):
    """No room is left where the store lies."""


class StoreGoneError(StoreError):
    """The folder of a store, or of a run in it, was there and is not any more: removed, renamed or unmounted."""


class ClaimError(StudyError):
    """Another process works on the run, or has taken it over."""


class RunFailedError(StudyError):
    """A run raised an error, or its process died."""


class RunStoppedError(StudyError):
    """A run was asked to stop and did; it can be resumed."""


FEW = 24
"""Choices up to which all are listed beside the nearest one."""


class UnknownNameError(LandscopeError, KeyError):
    """A name that does not exist, with the nearest of the choices; all of them where they are few, or none is near.

    >>> raise UnknownNameError.among("optimiser", "sdg", ["sgd", "adam"])
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown optimiser 'sdg'; did you mean 'sgd'? Choices: adam, sgd
    """

    @classmethod
    def among(cls, kind: str, name: str, choices: Iterable[str]) -> UnknownNameError:
        """The error for a `name` that is not among the `choices`."""
        known = sorted(choices)
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        if nearest and len(known) > FEW:
            return cls(f"unknown {kind} {name!r}{hint} ({len(known)} in all)")
        shown = ", ".join(known[:40]) + (f", … ({len(known)} in all)" if len(known) > 40 else "")
        return cls(f"unknown {kind} {name!r}{hint} Choices: {shown or 'none'}")

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return str(self.args[0]) if self.args else ""


class MissingExtraError(LandscopeError, ImportError):
    """An optional package is needed and absent; the message holds the command that installs it."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        """The error for `package`, which `landscope[extra]` installs."""
        return cls(f"{purpose} needs {package}, which is not installed. Run: pip install 'landscope[{extra}]'")
