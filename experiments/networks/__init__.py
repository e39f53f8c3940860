"""Networks whose dropout arrives as an argument: one class serves every method."""

from experiments.networks.tiramisu import FCDenseNet as FCDenseNet
from experiments.networks.vgg import VGG as VGG
