"""Networks for volumes of shape (N, channels, depth, height, width)."""

from landscope.models.volumes.autoencoder import Autoencoder3d

__all__ = ["Autoencoder3d"]
