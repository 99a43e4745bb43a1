"""Networks for images of shape (N, channels, height, width)."""

from landscope.models.images.all_cnn import AllCNN
from landscope.models.images.efficientnet import EfficientNetLite0
from landscope.models.images.lenet import LeNet5
from landscope.models.images.preresnet import PreResNet
from landscope.models.images.resnet import ResNet
from landscope.models.images.vgg import VGG, VGGImageNetHead
from landscope.models.images.vit import VisionTransformer
from landscope.models.images.wide_resnet import WideResNet

__all__ = [
    "VGG",
    "AllCNN",
    "EfficientNetLite0",
    "LeNet5",
    "PreResNet",
    "ResNet",
    "VGGImageNetHead",
    "VisionTransformer",
    "WideResNet",
]
