"""Training: optimizers and objectives that look for flat minima, the loop, and pools of models trained at once."""

from landscope.training.callbacks import Callback, TensorBoard, WeightsAndBiases
from landscope.training.loop.folder import TrainingResult
from landscope.training.loop.train import train
from landscope.training.objectives import FAM
from landscope.training.optimizers import SAM
from landscope.training.pool.result import Pool
from landscope.training.pool.train_pool import train_pool
from landscope.training.spec import TrainingSpec

__all__ = [
    "FAM",
    "SAM",
    "Callback",
    "Pool",
    "TensorBoard",
    "TrainingResult",
    "TrainingSpec",
    "WeightsAndBiases",
    "train",
    "train_pool",
]
