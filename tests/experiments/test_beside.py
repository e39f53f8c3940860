"""The default beside its rivals: its command on few users, its table, and the stand-ins of missing packages."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.collaborative import beside, beside_table, stand_ins

ROOT = Path(__file__).parents[2]


def test_page_has_the_table_of_its_records() -> None:
    page = (beside_table.HERE / "README.md").read_text(encoding="utf-8")
    assert beside_table.filled(page, beside_table.read()) == page


def test_differences_are_pooled_over_the_users_of_all_seeds() -> None:
    random = np.random.default_rng(0)
    seeds = [random.normal(0.1, 1, n) for n in (400, 900)]
    parts = [{"mean": x.mean(), "error": x.std(ddof=1) / math.sqrt(len(x)), "users": len(x)} for x in seeds]
    mean, error, p = beside_table.pooled(parts)
    whole = np.concatenate(seeds)
    assert mean == pytest.approx(whole.mean())
    assert error == pytest.approx(whole.std() / math.sqrt(len(whole)), rel=0.05)
    assert p == pytest.approx(math.erfc(abs(mean) / error / math.sqrt(2)))


def test_compact_netflix_is_unpacked_in_order_of_movies(tmp_path: Path) -> None:
    # Users with movies {9, 4} and {4, 7}; items by popularity: 4, 9, 7.
    np.savez(
        tmp_path / "netflix.npz", count=np.array([2, 2], np.uint16), low=np.array([0, 1, 0, 2], np.uint8),
        high=np.zeros(4, np.uint8), movie_id=np.array([4, 9, 7]),
    )  # fmt: skip
    assert beside.likes("netflix", tmp_path / "netflix.npz", None).toarray().tolist() == [[1, 0, 1], [1, 1, 0]]


def test_missing_packages_get_stand_ins_and_others_do_not() -> None:
    code = (
        "from experiments.collaborative import stand_ins; import sys\n"
        "assert stand_ins.install('json', 'no_such_package') == ['no_such_package']\n"
        "import json, no_such_package.part.other as other\n"
        "class Made(other.Kind): pass\n"
        "with other.thing(1) as found: found.more(2)\n"
        "print(json.dumps(1), other.Kind | None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert stand_ins.install("json") == []
