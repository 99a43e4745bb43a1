"""Data: one loader per data set of the papers, corruptions, augmentation.

load(name)                    disjoint training, validation and test tensors with a card
get(name), status(name)       download what is missing; see what is there
corrupt(images, name, 3)      the corruptions of CIFAR-C, on tensors
Augmentation(...)             flips, crops and cutout, in batches on the device
"""

from landscope.data import sets as _sets
from landscope.data.augment import Augmentation
from landscope.data.catalogue import Progress, SetStatus, get, list_status, status
from landscope.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS, corrupt
from landscope.data.dataset import DATASETS, DataCard, DataSplits, Split
from landscope.data.loading import Pixels, load, scaled
from landscope.data.sets.functions import TEST_FUNCTIONS

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "EXTRA_CORRUPTIONS",
    "MAIN_CORRUPTIONS",
    "TEST_FUNCTIONS",
    "Augmentation",
    "DataCard",
    "DataSplits",
    "Pixels",
    "Progress",
    "SetStatus",
    "Split",
    "corrupt",
    "get",
    "list_status",
    "load",
    "scaled",
    "status",
]

del _sets
