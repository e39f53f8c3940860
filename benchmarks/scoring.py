"""How many users a second ``lbdrop recommend score`` serves: in one process, and on the workers of a local Ray cluster.

Histories of generated users go to Parquet, 20 items for each, by learned dropout over as many masks as the method averages.
Both engines run the same function on the same parts and the results are compared row by row. The time on the cluster is taken
twice: as the caller waits for it, with workers that start and read the model, and from the first part on its way to the last.
The nodes are on one machine and share its cores.

Then ``lbdrop recommend score`` itself, in a process of its own, on files of histories of which the second has four times the
rows of the first: peak memory should follow the size of a part and not that of the file.

Run: ``python -m benchmarks.scoring``.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
import typer
from rich.console import Console

from lbdrop.io.records import provenance, write_json
from lbdrop.recommend import Recommender
from lbdrop.recommend.answer import score_files
from lbdrop.recommend.data.shop import generate_shop

__all__ = ["cluster_of", "main"]


def main(
    users: Annotated[int, typer.Option(min=1, help="Users to score.")] = 100_000,
    items: Annotated[int, typer.Option(min=20, help="Items of the catalogue.")] = 2_000,
    k: Annotated[int, typer.Option(min=1, help="Items a user.")] = 20,
    part: Annotated[int, typer.Option(min=1, help="Users a part.")] = 5_000,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster, each with one worker.")] = 2,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of the first file whose scoring is watched for memory.")
    ] = 6_000_000,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Users scored a second."""
    console = Console(highlight=False)
    torch.set_num_threads(1)  # a Ray worker has one core, and so has the process beside it
    shop = generate_shop(users=users, items=items, groups=8)
    learned = Recommender(dropout="learned", epochs=1, validation=0, progress=False).fit(
        shop.interactions.filter(pl.col("user_id") < 5_000)
    )
    score_files.ROWS_IN_MEMORY = part * k
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        alone = _timed(learned, shop.interactions, folder / "one", k)
        with cluster_of(nodes) as address:
            spread = _timed(learned, shop.interactions, folder / "ray", k, engine="ray", address=address)
        one, other = (pl.read_parquet(folder / name) for name in ("one", "ray"))
        same = one.equals(other)
        memory = [_watched(learned, shop.interactions, n, k, folder) for n in (rows, 4 * rows)]
        size = sum(each.stat().st_size for each in (folder / "one").iterdir())
    for name, found in (("one process", alone), (f"Ray, {nodes} nodes", spread)):
        console.print(f"{name}: {found['users_per_second']:,.0f} users/s, {found['seconds']:.1f} s", markup=False)
    for found in memory:
        console.print(
            f"{found['rows']:,} rows: {found['peak_bytes'] / 2**20:,.0f} MiB, {found['seconds']:.1f} s", markup=False
        )
    result = {
        "settings": {"users": users, "items": items, "k": k, "users_per_part": part, "nodes": nodes, "cores": os.cpu_count(),
                     "method": learned.choice.method, "samples": learned.settings_ and learned.settings_.samples},
        "one process": alone,
        "ray": spread,
        "the same rows": same,
        "bytes": size,
        "memory": memory,
        "provenance": provenance(),
    }  # fmt: skip
    path = out or Path(__file__).parent / "results" / "scoring.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)


@contextmanager
def cluster_of(nodes: int) -> Iterator[str]:
    """A Ray cluster of so many nodes with one core each on this machine, on the loopback device alone; its address."""
    with ray_cluster(nodes) as cluster:
        yield cluster.address


@contextmanager
def ray_cluster(nodes: int, **head: Any) -> Iterator[Any]:
    """The same, as Ray's own object, whose nodes can be taken away."""
    # The second keeps every address at 127.0.0.1: nothing outside this machine is asked or can ask.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    from ray.cluster_utils import Cluster

    each = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = _patiently(lambda: Cluster(True, head_node_args=each | {"include_dashboard": False} | head))
    try:
        for _ in range(nodes - 1):
            _patiently(lambda: cluster.add_node(**each))
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def _patiently(start: Callable[[], Any]) -> Any:
    """Three attempts: a node that is not up within half a minute, on a busy machine, is an error for Ray."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:
            print(f"once more: {str(error).splitlines()[0]}", file=sys.stderr)
    return start()


def _timed(model: Recommender, histories: pl.DataFrame, out: Path, k: int, **engine: Any) -> dict[str, float]:
    """Seconds as the caller waits for them, and users a second between the first part and the last."""
    start = time.time()
    model.score_to(out, histories, k, **engine)
    seconds = time.time() - start
    parts = sorted(each.stat().st_mtime for each in out.iterdir())
    users = histories["user_id"].n_unique()
    between = parts[-1] - parts[0]
    steady = users * (len(parts) - 1) / len(parts) / between if between > 0 else float("nan")
    return {"seconds": seconds, "users_per_second": users / seconds, "steady_users_per_second": steady}


def _watched(model: Recommender, likes: pl.DataFrame, rows: int, k: int, folder: Path) -> dict[str, float]:
    """Peak memory of the command on a file of so many rows: the same histories again and again, under new ids."""
    model.save(folder / "model", histories=False)
    users = int(likes["user_id"].max() or 0) + 1  # pyright: ignore[reportArgumentType]
    copies = (likes.lazy().with_columns(pl.col("user_id") + n * users) for n in range(-(-rows // len(likes))))
    pl.concat(list(copies)).head(rows).sink_parquet(folder / "histories.parquet")
    out = folder / "watched.parquet"
    call = [
        "recommend",
        "score",
        folder / "model",
        folder / "histories.parquet",
        "--k",
        k,
        "--out",
        out,
        "--samples",
        0,
    ]
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "lbdrop", *map(str, call)], stdout=subprocess.DEVNULL)
    peak = _peak_bytes(process)
    if process.returncode:
        raise RuntimeError(f"lbdrop {' '.join(map(str, call))}: exit status {process.returncode}")
    found = pl.scan_parquet(out).select(pl.len(), pl.col("user_id").n_unique()).collect().row(0)
    return {"rows": rows, "users": found[1], "scored": found[0], "seconds": time.perf_counter() - start,
            "peak_bytes": peak}  # fmt: skip


def _peak_bytes(process: subprocess.Popen[bytes]) -> int:
    """The most that a process held until it ended; getrusage would count what this one held when it started it."""
    peak = 0
    while process.poll() is None:
        with suppress(OSError, IndexError):  # it may end between the question and the answer
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, 1024 * int(status.partition("VmHWM:")[2].split()[0]))
        time.sleep(0.05)
    return peak


if __name__ == "__main__":
    typer.run(main)
