"""torchvision's residual networks, adapted to small images (pixels from 0 to 1)."""

from typing import Final

from torch import nn
from torchvision.models import ResNet
from torchvision.models import resnet18 as torchvision_resnet18
from torchvision.models import resnet50 as torchvision_resnet50

SMALL_IMAGE_SIZE: Final = 64
"""Maximum height and width of images for which the first layers are replaced."""


def resnet18(outputs: int, image_size: int) -> ResNet:
    """Build a randomly initialized ResNet-18 (He et al. 2015, arXiv:1512.03385) for RGB images."""
    return _adapt(torchvision_resnet18(weights=None, num_classes=outputs), image_size)


def resnet50(outputs: int, image_size: int) -> ResNet:
    """Build a randomly initialized ResNet-50 for RGB images."""
    return _adapt(torchvision_resnet50(weights=None, num_classes=outputs), image_size)


def _adapt(network: ResNet, image_size: int) -> ResNet:
    """For small images, replace the first layers as in the CIFAR-10 networks of He et al. 2015.

    With the strided 7x7 convolution and the pooling, the network would shrink 32x32 images to 1x1.
    A 3x3 convolution that keeps the size replaces both (section 4.2).
    """
    if image_size <= SMALL_IMAGE_SIZE:
        network.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
    return network
