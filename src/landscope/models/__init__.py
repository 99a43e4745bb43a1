"""The networks of the papers, by exact name with typed options: importing this package imports every file in it.

>>> from landscope import models
>>> model = models.build("mlp", in_features=4, widths=(8,), num_classes=3)
>>> models.MODELS["resnet18"].parameters
11173962
"""

from importlib import import_module
from pkgutil import iter_modules

from landscope.models.all_cnn import AllCNN
from landscope.models.autoencoder import Autoencoder3d
from landscope.models.bert import PRETRAINED_PACKAGE, BertClassifier
from landscope.models.catalogue import MODELS, ModelEntry, Option, OptionError, ParameterCount, build, names
from landscope.models.efficientnet import EfficientNetLite0
from landscope.models.gat import GAT
from landscope.models.lenet import LeNet5
from landscope.models.mlp import MLP, DeepLinear, SoftmaxRegression
from landscope.models.resnet import PreResNet, ResNet, WideResNet
from landscope.models.vgg import VGG, VGGImageNetHead
from landscope.models.vit import VisionTransformer

__all__ = [
    "GAT",
    "MLP",
    "MODELS",
    "PRETRAINED_PACKAGE",
    "VGG",
    "AllCNN",
    "Autoencoder3d",
    "BertClassifier",
    "DeepLinear",
    "EfficientNetLite0",
    "LeNet5",
    "ModelEntry",
    "Option",
    "OptionError",
    "ParameterCount",
    "PreResNet",
    "ResNet",
    "SoftmaxRegression",
    "VGGImageNetHead",
    "VisionTransformer",
    "WideResNet",
    "build",
    "names",
]

for _found in iter_modules(__path__):
    import_module(f"{__name__}.{_found.name}")
