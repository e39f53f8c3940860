"""A table is refused before it is decoded where it would become larger than it may, however it hides that."""

import gzip
import os
import zlib
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.checkerboard import checkerboard
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.errors import DropoutError
from lbdrop.recommend.data import parquet_sizes
from lbdrop.recommend.data.parquet_sizes import check_fits, check_pieces_fit, declared

MEGABYTE = 1 << 20


def varint(number: int, length: int | None = None) -> bytes:
    """Thrift's, zigzag; of a chosen length, which smaller numbers may have, too."""
    number, found = number * 2, []
    while number > 127 or (length is not None and len(found) < length - 1):
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "lz4", "brotli"])
def test_page_that_unfolds_beyond_what_it_declares_is_refused(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "liar.parquet"
    text = ["x" * (8 * MEGABYTE) + str(row) for row in range(4)]
    whole = pa.table({"user_id": text, "item_id": [1, 2, 3, 4]})
    pq.write_table(whole, path, compression=codec, use_dictionary=False, write_statistics=False, data_page_size=1 << 30)
    honest, data = declared(path).bytes, path.read_bytes()
    assert honest > 32 * MEGABYTE
    for size in range(honest - 200, honest + 1):  # of the page, and of the column
        data = data.replace(varint(size), varint(5_000, len(varint(size))))
    path.write_bytes(data)
    assert declared(path).bytes < MEGABYTE
    check_fits(path, MEGABYTE)
    with pytest.raises(pl.exceptions.ComputeError):
        pl.read_parquet(path)


def test_value_repeated_a_hundred_million_times_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "same.parquet"
    with pq.ParquetWriter(path, pa.schema([("user_id", pa.int64())])) as out:
        for _ in range(10):
            out.write_table(pa.table({"user_id": pa.repeat(1, 1_000_000)}))
    assert path.stat().st_size < 50_000
    assert check_fits(path, 80_000_000) == 10_000_000
    with pytest.raises(
        DropoutError, match=r"want a table of at most 70,000,000 bytes, got .* that unfold to 80,000,000"
    ):
        check_fits(path, 70_000_000)


def test_table_that_is_read_piece_by_piece_is_bounded_by_its_largest_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "likes.parquet"
    rows = pa.table({"user_id": [*range(1000)] * 100, "item_id": pa.repeat(1, 100_000)})
    pq.write_table(rows, path, row_group_size=10_000)
    check_pieces_fit(path, 200_000)
    with pytest.raises(DropoutError, match=r"want row groups of at most 100,000 bytes, got 160,000 or more in group 0"):
        check_pieces_fit(path, 100_000)
    monkeypatch.setattr(parquet_sizes, "_memory", lambda: 100_000)
    done = CliRunner().invoke(app, ["data", "prepare", "own", str(path), "--out", str(tmp_path / "prepared")])
    assert done.exit_code == 1
    assert "want row groups of at most 100,000 bytes" in done.output


@pytest.mark.parametrize("name", ["likes.csv.gz", "likes.csv"])
def test_gzip_is_unfolded_no_further_than_it_may_be(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"user_id,item_id\n" + b"1,2\n" * (8 * MEGABYTE)))
    check_fits(path, 64 * MEGABYTE)
    with pytest.raises(DropoutError, match=r"want a table of at most 16,777,216 bytes, got \d+,\d+ that unfold"):
        check_fits(path, 16 * MEGABYTE)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DropoutError, match="damaged gzip"):
        check_fits(path)


def test_text_compressed_in_another_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "likes.csv").write_bytes(zlib.compress(b"user_id,item_id\n" + b"1,2\n" * MEGABYTE))
    with pytest.raises(DropoutError, match="want text, or gzip of it"):
        check_fits(tmp_path / "likes.csv")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_fit_refuses_special_files_as_features(suffix: str, tmp_path: Path) -> None:
    checkerboard().write_csv(tmp_path / "likes.csv")
    os.mkfifo(tmp_path / f"items.{suffix}")  # which would be waited for
    words = ["recommend", "fit", str(tmp_path / "likes.csv"), "--method", "ease", "--out", str(tmp_path / "model")]
    done = CliRunner().invoke(app, [*words, "--item-features", str(tmp_path / f"items.{suffix}")])
    assert (done.exit_code, done.stderr.strip()) == (1, f"{tmp_path}/items.{suffix}: want a file, got a FIFO")
