"""Small stand-ins for the data that the tasks of the rates experiment read."""

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments.collaborative.data.prepare import prepare
from experiments.rates import uci


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the published formats with few, generated examples."""
    made, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    parts = {"train_x": (90, 28, 28), "train_y": (90,), "test_x": (12, 28, 28), "test_y": (12,)}
    np.savez(made / "fashion-mnist.npz", **{  # pyright: ignore
        name: random.integers(0, 10 if name.endswith("y") else 256, shape, dtype=np.uint8) for name, shape in parts.items()
    })  # fmt: skip
    with tarfile.open(made / "uci.tar", "w") as archive:
        for name in uci.FOLDERS.values():
            order = random.permutation(40)
            files = {
                "data.txt": random.normal(size=(40, 4)), "index_features.txt": np.arange(3), "index_target.txt": [3],
                "index_train_0.txt": order[:36], "index_test_0.txt": order[36:],
            }  # fmt: skip
            for file, content in files.items():
                written = io.BytesIO()
                np.savetxt(written, content)
                entry = tarfile.TarInfo(f"UCI_Datasets/{name}/data/{file}")
                entry.size = written.tell()
                written.seek(0)
                archive.addfile(entry, written)
    likes_of(made)
    return made


def likes_of(folder: Path) -> None:
    """MovieLens-1M and Netflix, prepared, of 60 users with 9 likes each."""
    random, source = np.random.default_rng(0), folder / "official"
    source.mkdir()
    rows = [f"{user}::{1 + item}::5::{user}" for user in range(1, 61) for item in random.choice(20, 9, replace=False)]
    (source / "ratings.dat").write_text("\n".join(rows) + "\n")
    (source / "movies.dat").write_text("".join(f"{i}::Film {i} (1999)::Drama\n" for i in range(1, 21)))
    prepare("ml-1m", source, folder / "prepared", allow_partial=True, held_out_users=10)
    shutil.copytree(folder / "prepared" / "ml-1m", folder / "prepared" / "netflix")
