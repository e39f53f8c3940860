"""Images for the experiments: read, split, batched on the device, and corrupted on purpose."""

from lbdrop.vision import cifar10 as cifar10
from lbdrop.vision import corruptions as corruptions
from lbdrop.vision.batches import Batches as Batches
from lbdrop.vision.cifar10 import Images as Images
from lbdrop.vision.cifar10 import Split as Split
from lbdrop.vision.corruptions import corrupt as corrupt
