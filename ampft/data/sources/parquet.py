"""Parquet files, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.sources.table import Row, Table, refuse_duplicates
from ampft.errors import InputError

ROWS_AT_A_TIME = 4096


def read_parquet(path: Path, *, encoding: str) -> Table:
    """Open a Parquet file; its texts are UTF-8, so `encoding` has no effect.

    Raises:
        InputError: The file is not Parquet, or two columns have the same name.
    """
    del encoding
    try:
        columns = tuple(pq.ParquetFile(path.absolute()).schema_arrow.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}).") from None
    refuse_duplicates(columns, str(path))

    def read(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        with pq.ParquetFile(path.absolute()) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=list(names)):
                # By name, because the batch has the columns in the order of the file.
                values = [batch.column(name).to_pylist() for name in names]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, row

    return Table(columns=columns, read=read, unit="row", origin=str(path))
