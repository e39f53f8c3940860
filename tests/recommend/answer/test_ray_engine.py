"""Scoring on a Ray cluster of two nodes of which one is killed, and errors of one line about clusters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop

# In a process of its own: Ray talks to stderr as it likes, and its node must be killed from where it was started.
SCRIPT = """
import json, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from benchmarks.scoring import ray_cluster
from lbdrop.recommend import Recommender
from lbdrop.recommend.answer import score_files

folder, users = Path(sys.argv[1]), int(sys.argv[2])
model = Recommender.load(folder / "model")
model.progress = False
score_files.ROWS_IN_MEMORY = 20 * 20  # 20 users a part
model.score_to(folder / "local", k=20, samples=60)
whole = len(list((folder / "local").iterdir()))
told, over = {"parts": whole}, threading.Event()

def workers_of(node):
    raylet, found = node.all_processes["raylet"][0].process.pid, 0
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            found += parent == raylet and "MapWorker" in (each / "cmdline").read_text()
        except (OSError, ValueError):
            pass
    return found

def kill_one(cluster, node):
    def done():
        return len(list(folder.glob("ray.unfinished/*/parts/part-*.parquet")))
    seen = None
    while seen is None or done() < seen + 4:  # both are at work
        if over.is_set():
            return  # too late: told lacks what the test wants
        if seen is None and workers_of(node) and done():
            seen = done()
        time.sleep(0.01)
    told["done when it was killed"], told["workers there"] = done(), workers_of(node)
    cluster.remove_node(node, allow_graceful=False)

quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
with ray_cluster(2, _system_config=quick) as cluster:
    killer = threading.Thread(target=kill_one, args=(cluster, list(cluster.worker_nodes)[0]))
    killer.start()
    model.score_to(folder / "ray", k=20, samples=60, engine="ray", address=cluster.address)
    over.set()
    killer.join()
(folder / "told.json").write_text(json.dumps(told))
"""


@pytest.mark.process
def test_users_are_scored_once_although_one_of_two_nodes_is_killed(tmp_path: Path) -> None:
    likes = generate_shop(users=1200, items=400, groups=4).interactions
    Recommender(dropout="learned", epochs=1, validation=0, progress=False).fit(likes).save(tmp_path / "model")
    threads = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), "1200"],
        env=os.environ | threads,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["workers there"] == 1
    assert 0 < told["done when it was killed"] < told["parts"] == 60
    found, local = pl.read_parquet(tmp_path / "ray"), pl.read_parquet(tmp_path / "local")
    assert found["user_id"].to_list() == [user for user in range(1200) for _ in range(20)]
    assert found.equals(local)
    for part in (tmp_path / "local").iterdir():
        assert part.read_bytes() == (tmp_path / "ray" / part.name).read_bytes()
    assert not (tmp_path / "ray.unfinished").exists()


def test_missing_ray_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Recommender("popularity").fit(generate_shop(users=20, items=10, groups=2).interactions)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DropoutError, match=r"ray: package not found; pip install 'lbdrop\[ray\]'"):
        model.score_to(tmp_path / "scores", engine="ray")
    assert not list(tmp_path.iterdir())


def test_unknown_engine_is_an_error_that_lists_the_engines(tmp_path: Path) -> None:
    model = Recommender("popularity").fit(generate_shop(users=20, items=10, groups=2).interactions)
    with pytest.raises(DropoutError, match="engine: want one of local, ray, got 'spark'"):
        model.score_to(tmp_path / "scores", engine="spark")
    with pytest.raises(DropoutError, match="address: want it with engine='ray' alone"):
        model.score_to(tmp_path / "scores", address="auto")
