"""Reading training examples from JSONL, Parquet, a saved data set, or one of the shipped sample files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from checks.errors import BadRequest
from checks.samples.preference import Preference, read_preference
from checks.samples.sample import Columns, RowError, Sample, name_columns, read_row

_HERE = Path(__file__).parent
SAMPLE_FILES: Mapping[str, Path] = MappingProxyType(
    {name: _HERE / f"{name}.jsonl" for name in ("gsm8k_sample", "tulu3_sample", "tools_sample", "preferences_sample")}
)
"""name → shipped file: 64 rows in GSM8K form (question, answer), 64 in Tulu 3 form (id, messages, source), 24 in that
form with tool turns, and 48 preferences (prompt, chosen, rejected)"""
PREFERENCES = "preferences_sample"
"""Of `SAMPLE_FILES`, the one that holds preferences."""
_KINDS = "give a .jsonl or .parquet file, or a directory written by datasets.save_to_disk"
_Row = tuple[int | None, Mapping[str, Any]]


def resolve_data(text: str) -> Path:
    """Return the path that `--data` means: an existing path first, else a shipped file's name with or without .jsonl.

    Raises BadRequest when neither exists.
    """
    path = Path(text).expanduser()
    if path.exists():
        return path.resolve()
    shipped = SAMPLE_FILES.get(text.removesuffix(".jsonl"))
    if shipped is not None:
        return shipped
    names = ", ".join(sorted(SAMPLE_FILES))
    raise BadRequest("data", f"{text!r} does not exist", f"give an existing file or directory, or one of {names}")


def read_samples(path: Path | str, *, limit: int | None = None) -> tuple[Sample, ...]:
    """Read every example, or the first `limit`, of a file or data set; all must have the same columns.

    Raises BadRequest naming the file, the line where there is one, what was found and the remedy.
    """
    path = resolve_data(str(path))
    if limit is not None and limit < 1:
        raise BadRequest("limit", f"{limit} rows asked", "ask for one row or more")
    samples: list[Sample] = []
    first: Columns | None = None
    for index, (line, row) in enumerate(islice(_read_rows(path), limit)):
        where = f"{path} {_name_place(index, line)}"
        try:
            columns = name_columns(row)
            if first is not None and columns != first:
                found = f"has {columns} where the rows before have {first}"
                raise RowError(found, "keep one form in a file and split the others off")
            first = columns
            samples.append(read_row(row, index=index, line=line))
        except RowError as error:
            raise BadRequest(f"data {where}", error.found, error.remedy) from None
    if not samples:
        raise BadRequest(f"data {path}", "holds no example", "give a file with at least one row")
    return tuple(samples)


def read_preferences(path: Path | str) -> tuple[Preference, ...]:
    """Read every preference of a file or data set; all must be of one form.

    Raises BadRequest naming the file, the line where there is one, the column, what was found and the remedy.
    """
    path = resolve_data(str(path))
    found: list[Preference] = []
    for index, (line, row) in enumerate(_read_rows(path)):
        try:
            one = read_preference(row, index=index, line=line)
            if found and (one.chosen.form, one.explicit) != (found[0].chosen.form, found[0].explicit):
                here, before = (_name_form(each) for each in (one, found[0]))
                raise RowError(f"holds {here} where the rows before hold {before}", "keep one form in a file")
        except RowError as error:
            raise BadRequest(f"data {path} {_name_place(index, line)}", error.found, error.remedy) from None
        found.append(one)
    if not found:
        raise BadRequest(f"data {path}", "holds no preference", "give a file with at least one row")
    return tuple(found)


def _name_form(one: Preference) -> str:
    kind = "messages" if one.chosen.form == "messages" else "text"
    return f"{kind} {'with' if one.explicit else 'without'} a column prompt"


def _name_place(index: int, line: int | None) -> str:
    return f"row {index + 1}" if line is None else f"line {line}"


def _read_rows(path: Path) -> Iterator[_Row]:
    if path.is_dir():
        return _read_saved(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        return _read_jsonl(path)
    found = f"the ending {path.suffix} is not known" if path.suffix else "it has no ending"
    raise BadRequest(f"data {path}", found, _KINDS)


def _read_jsonl(path: Path) -> Iterator[_Row]:
    """Rows of a JSONL file; blank lines are passed over but counted."""
    try:
        with path.open("rb") as file:
            for line, raw in enumerate(file, start=1):
                # A byte order mark, as some editors write, belongs to the encoding and not to the first row.
                content = (raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw).rstrip(b"\r\n")
                if content.strip():
                    yield line, _parse_line(content, path, line)
    except OSError as error:
        raise BadRequest(f"data {path}", f"cannot be read ({error.strerror})", "make the file readable") from None


def _parse_line(content: bytes, path: Path, line: int) -> Mapping[str, Any]:
    where = f"data {path} line {line}"
    try:
        row = json.loads(content.decode("utf-8"))  # of bytes json would guess the encoding, and blame the JSON
    except UnicodeDecodeError as error:
        raise BadRequest(where, f"byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        found = f"is not JSON ({error.msg} at column {error.colno})"
        raise BadRequest(where, found, "write one JSON object a line") from None
    except RecursionError:
        raise BadRequest(where, "is nested too deeply", "write one flat JSON object a line") from None
    if not isinstance(row, dict):
        raise BadRequest(where, f"is a JSON {type(row).__name__}", "write one JSON object a line")
    return row


def _read_parquet(path: Path) -> Iterator[_Row]:
    parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield None, row
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadRequest(f"data {path}", f"is no readable Parquet file ({reason})", "write the file again") from None


def _read_saved(path: Path) -> Iterator[_Row]:
    """Rows of `datasets.save_to_disk`; of a saved DatasetDict the train split."""
    if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json", "state.json")):
        raise BadRequest(f"data {path}", "is a directory but no saved data set", _KINDS)
    datasets = import_module("datasets")
    try:
        saved: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises what its parsers raise: any of them means an unreadable data set
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise BadRequest(f"data {path}", f"cannot be loaded ({reason})", "save the data set again") from None
    if isinstance(saved, datasets.DatasetDict):
        if "train" not in saved:
            splits = ", ".join(sorted(saved)) or "none"
            raise BadRequest(f"data {path}", f"has no train split (splits: {splits})", "give one split's directory")
        saved = saved["train"]
    rows: Iterable[Mapping[str, Any]] = saved
    for row in rows:
        yield None, row
