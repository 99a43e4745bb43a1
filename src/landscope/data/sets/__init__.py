"""One file per data set; importing this package imports every file in it, and registers the sets that it finds there."""

from importlib import import_module
from pkgutil import iter_modules

from landscope.data.dataset import DATASETS, DataSet

for _file in iter_modules(__path__):
    for _found in vars(import_module(f"{__name__}.{_file.name}")).values():
        if isinstance(_found, DataSet):
            DATASETS.register(_found.name)(_found)
