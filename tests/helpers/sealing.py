"""A folder that was changed on purpose gets checksums that fit, so that what is behind them is tested."""

from pathlib import Path

from benchmarks.fuzz_changes import resealed


def reseal(folder: Path) -> None:
    files = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    for name, content in resealed(files).items():
        (folder / name).write_bytes(content)
