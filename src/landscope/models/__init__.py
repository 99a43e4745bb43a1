"""The networks of the papers, by exact name with typed options.

>>> from landscope import models
>>> model = models.build("mlp", in_features=4, widths=(8,), num_classes=3)
>>> models.MODELS["resnet18"].parameters
11173962
"""

from landscope.models import graphs, images, tabular, text, volumes
from landscope.models.catalogue import MODELS, ModelEntry, ParameterCount, build, names
from landscope.models.options import Option, OptionError

__all__ = [
    "MODELS",
    "ModelEntry",
    "Option",
    "OptionError",
    "ParameterCount",
    "build",
    "graphs",
    "images",
    "names",
    "tabular",
    "text",
    "volumes",
]
