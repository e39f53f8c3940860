"""Arrays of an .npz, which may be damaged or somebody else's: checked by name and type, never unpickled."""

import numpy as np

from experiments.archives import read_npz
from experiments.collaborative.data.official_files import File
from lbdrop.errors import DropoutError

__all__ = ["arrays"]


def arrays(file: File, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    """The vectors of these names; ``kinds`` gives numpy's letters for the types allowed, such as ``"iu"``."""
    try:
        with file.open() as stream:
            found = read_npz(stream, tuple(kinds))
    except DropoutError as error:
        raise DropoutError(f"{file.name}: want an .npz with {', '.join(kinds)}, got {error}; make it again") from error
    for name, kind in kinds.items():
        if found[name].ndim != 1 or found[name].dtype.kind not in kind:
            raise DropoutError(
                f"{file.name}: want {name} as a vector of kind {kind!r}, got {found[name].dtype} of shape"
                f" {found[name].shape}; make it again"
            )
    return found
