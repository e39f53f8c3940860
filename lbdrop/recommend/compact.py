"""Arrays of an .npz, which may be damaged or somebody else's: checked by name and type, never unpickled."""

import zipfile
import zlib

import numpy as np

from lbdrop.errors import DropoutError
from lbdrop.recommend.sources import File

__all__ = ["arrays"]


def arrays(file: File, kinds: dict[str, str]) -> dict[str, np.ndarray]:
    """The vectors of these names; ``kinds`` gives numpy's letters for the types allowed, such as ``"iu"``."""
    found: dict[str, np.ndarray] = {}
    try:
        with file.open() as stream, np.load(stream, allow_pickle=False) as packed:
            missing = [name for name in kinds if name not in packed.files]
            if missing:
                raise DropoutError(f"{file.name}: want the arrays {[*kinds]}, got {packed.files} without {missing}")
            for name, kind in kinds.items():
                found[name] = packed[name]
                if found[name].ndim != 1 or found[name].dtype.kind not in kind:
                    raise DropoutError(
                        f"{file.name}: want {name} as a vector of kind {kind!r}, got {found[name].dtype} of shape"
                        f" {found[name].shape}"
                    )
    except DropoutError:
        raise
    except (
        ValueError,
        AttributeError,
        TypeError,
        OSError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
        SyntaxError,
    ) as error:
        raise DropoutError(
            f"{file.name}: want a whole .npz, got {error or type(error).__name__}; make it again"
        ) from error
    return found
