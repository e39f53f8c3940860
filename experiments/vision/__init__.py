"""Images for the experiments: read, split, batched on the device, and corrupted on purpose."""

from experiments.vision import cifar10 as cifar10
from experiments.vision import corruptions as corruptions
from experiments.vision.batches import Batches as Batches
from experiments.vision.cifar10 import Images as Images
from experiments.vision.cifar10 import Split as Split
from experiments.vision.corruptions import corrupt as corrupt
