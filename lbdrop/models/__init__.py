"""Networks whose dropout arrives as an argument: one class serves every method."""

from lbdrop.models.tiramisu import FCDenseNet as FCDenseNet
from lbdrop.models.vgg import VGG as VGG
