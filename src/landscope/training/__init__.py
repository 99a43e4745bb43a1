"""Training: optimizers and objectives that look for flat minima, the loop, and pools of models trained at once."""

from landscope.training.callbacks import Callback, TensorBoard, WeightsAndBiases
from landscope.training.loop import train
from landscope.training.objectives import FAM
from landscope.training.optimizers import SAM
from landscope.training.pool import train_pool
from landscope.training.pool_result import Pool
from landscope.training.result import Trained
from landscope.training.spec import TrainingSpec

__all__ = [
    "FAM",
    "SAM",
    "Callback",
    "Pool",
    "TensorBoard",
    "Trained",
    "TrainingSpec",
    "WeightsAndBiases",
    "train",
    "train_pool",
]
