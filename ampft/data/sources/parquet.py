"""Parquet files, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.sources.table import Row, SourceTable, refuse_duplicates
from ampft.errors import InputError

ROWS_AT_A_TIME = 4096


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turn an error of a damaged file into an InputError that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path}: a text has the byte 0x{byte:02x}, which is not UTF-8. Parquet texts must be"
            " UTF-8: write the file again from decoded strings."
        ) from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"{path}: not a readable Parquet file ({reason}). It may be damaged: copy or write it"
            " again."
        ) from None


def read_parquet(path: Path, *, encoding: str) -> SourceTable:
    """Open a Parquet file; its texts are UTF-8, so `encoding` has no effect.

    Raises:
        InputError: The file is not Parquet, or two columns have the same name. Reading a row raises
            it for damaged pages and texts that are not UTF-8.
    """
    del encoding
    with reading_errors(path):
        columns = tuple(pq.ParquetFile(path.absolute()).schema_arrow.names)
    refuse_duplicates(columns, str(path))

    def read(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        with (
            reading_errors(path),
            pq.ParquetFile(path.absolute(), page_checksum_verification=True) as file,
        ):
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=list(names)):
                # By name, because the batch has the columns in the order of the file.
                values = [batch.column(name).to_pylist() for name in names]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, row

    return SourceTable(columns=columns, read=read, unit="row", origin=str(path))
