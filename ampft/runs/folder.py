"""The output folder of a run: it has one writer, and its files are written atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from ampft.arguments import ClassifyArguments
from ampft.data.sources.file_names import data_stem
from ampft.errors import InputError
from ampft.files import (
    FileDigest,
    describe_file,
    durably_rename,
    is_link,
    is_writable_folder,
    nearest_existing,
    refuse_link,
    set_default_permissions,
    write_errors_explained,
    write_text_non_atomically,
)
from ampft.ownership import (
    PrivateFolder,
    check_unlocked,
    file_identity,
    is_leftover,
    lock_holder_pid,
    remove_tree,
    remove_unfinished,
)
from ampft.runs.later_parts import trained_checkpoint
from ampft.runs.manifest import (
    HISTORY_NAME,
    NONFINITE_NAME,
    RECORD_NAME,
    describe_files,
    earlier_record,
    earlier_results,
    refuse_foreign_files,
    remove_earlier_run,
)
from ampft.runs.redaction import redact_command
from ampft.text.escaping import without_credentials

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")


class RunFolder:
    """An output folder that the main process of a run locks while the run lasts.

    The lock is advisory. It is released when the process ends, for whatever reason. Only files that
    this run wrote, or that an earlier run provably wrote, are replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        keep_files: bool = False,
        continues: bool = False,
        completes: bool = False,
        is_new: bool = False,
    ) -> None:
        """Create and lock the folder; when overwriting, remove the results of an earlier run.

        Args:
            path: The folder. It and its parents are created if they do not exist.
            overwrite: Whether the folder may contain files. Only the unchanged results of an
                earlier run are removed.
            keep_files: Whether the folder may contain files and nothing is removed, for a
                comparison that continues.
            continues: Whether the folder contains a run that continues: its record, its history and
                its checkpoints are kept.
            completes: Whether its training has ended, so that its saved model is kept too.
            is_new: Whether this run has created the folder already.

        Raises:
            InputError: Another process has locked the folder, it is not empty and neither flag is
                set, it contains files of the user under the names of results, or it cannot be
                created or written.
        """
        self.path = Path(path)
        self.staged: dict[str, FileDigest] = {}
        self.published: dict[str, FileDigest] = {}
        overwrite = overwrite or continues
        check_output_folder(path, overwrite=overwrite, keep_files=keep_files)
        what = f"--output_dir {self.path}: the folder"
        self._is_new = is_new or not self.path.exists()
        with write_errors_explained(what, "Choose another folder."):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._private = PrivateFolder(self.path)
            except BlockingIOError:
                raise _is_locked(self.path) from None
        self._own: dict[str, tuple[int, int] | None] = {}
        self._stage: Path | None = None
        try:
            # Repeated under the lock, because another run may have written in the meantime.
            _refuse_contents(self.path, overwrite=overwrite, keep_files=keep_files)
            remove_unfinished(self.path)
            if not keep_files:
                remove_earlier_run(self.path, continues=continues, completes=completes)
            for path in earlier_results(self.path) if continues else ():
                name = path.relative_to(self.path).as_posix()
                self.adopt(name)
                if completes and name not in (RECORD_NAME, HISTORY_NAME):
                    self.published[name] = describe_file(path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Yield a temporary path that becomes the file `name` if the block ends without an error.

        Raises:
            InputError: Another program wrote, replaced or linked the file in the meantime.
        """
        temporary = self._private.file(f"{name.replace('.', '-')}.tmp")
        temporary.open("xb").close()
        try:
            yield temporary
            found = file_identity(self.path / name)
            if found is not None and found != self._own.get(name):
                raise InputError(
                    f"--output_dir {self.path}: {name} was created or replaced by another program "
                    "during the run. Move it, and let nothing else write into this folder."
                )
            durably_rename(temporary, self.path / name)
            self._own[name] = file_identity(self.path / name)
        finally:
            temporary.unlink(missing_ok=True)

    def adopt(self, name: str) -> None:
        """Let this run replace a file that was recognised as one that an earlier run wrote."""
        self._own[name] = file_identity(self.path / name)

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file atomically, in UTF-8."""
        with self.replacing(name) as temporary:
            write_text_non_atomically(temporary, text)
        return self.path / name

    def stage(self) -> Path:
        """Return a hidden subfolder for results, which become visible with `publish`."""
        staging = self._private.file("results")
        if self._stage is None:
            staging.mkdir()
            self._stage = staging
        return staging

    def discard(self) -> None:
        """Remove everything that has not become a result."""
        self._private.clear()
        self._stage = None

    def is_intact(self) -> bool:
        """Return whether the folder still holds what the run wrote at its start."""
        return (self.path / RECORD_NAME).is_file() and self._private.is_intact()

    def check_record(self) -> None:
        """Check that the folder has not been removed during the run.

        Raises:
            FileNotFoundError: It has.
        """
        if not self.is_intact():
            reason = "the folder was removed or emptied during the run"
            raise FileNotFoundError(errno.ENOENT, reason, str(self.path))

    def files(self) -> dict[str, FileDigest]:
        """Return the results, the history and the saved steps, for the record of the run."""
        history, steps = self.path / HISTORY_NAME, self.path / NONFINITE_NAME
        saved = {f"{NONFINITE_NAME}/{name}": part for name, part in describe_files(steps).items()}
        written = {HISTORY_NAME: describe_file(history)} if history.is_file() else {}
        return self.published | self.staged | written | saved

    def publish(self) -> None:
        """Move the staged files, which `staged` lists, into the folder.

        Raises:
            InputError: The user has created a file of the same name in the meantime.
        """
        for name, digest in self.staged.items():
            source, target = self.stage() / name, self.path / name
            found = file_identity(target)
            is_own = found is not None and found == self._own.get(name)
            if is_own and self.published.get(name) == digest:
                continue
            if (found is not None and not is_own) or is_link(self.path, name):
                raise InputError(
                    f"--output_dir {self.path}: {name} was created by another program during the "
                    f"run, whose results are kept in {self.stage()}. Move the results elsewhere."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            set_default_permissions(source)
            durably_rename(source, target)
            self.adopt(name)
        remove_tree(self.stage())
        self._stage = None
        self.published |= self.staged
        self.staged = {}

    def close(self) -> None:
        """Release the lock, and remove a new folder with nothing in it, as after a refusal.

        A second call has no effect.
        """
        self._private.close(keep=bool(self.staged) and self._stage is not None)
        if self._is_new:
            with contextlib.suppress(OSError):  # it is not empty, as usual
                self.path.rmdir()


def check_output_folder(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    keep_files: bool = False,
    trains: bool = True,
) -> None:
    """Check that a run may write to `path`, without creating anything.

    Args:
        path: The folder, which need not exist.
        overwrite: Whether the folder may contain files.
        keep_files: Whether it may contain files that a comparison keeps.
        trains: Whether the command trains, and so can replace or continue a run in the folder.

    Raises:
        InputError: The path is a URL, a file or a link, another process has locked the folder, it
            is not empty and neither flag is set, or it contains files of the user under the names
            of results.
    """
    if "://" in str(path):
        raise InputError(
            f"--output_dir {without_credentials(str(path))}: this is a URL. Choose a local folder, "
            "and copy it after the run."
        )
    folder = Path(path)
    refuse_link(folder, "--output_dir")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {folder}: this is a file. Choose a folder.")
    try:
        check_unlocked(folder)
    except BlockingIOError:
        raise _is_locked(folder) from None
    _refuse_contents(folder, overwrite=overwrite, keep_files=keep_files, trains=trains)


def _refuse_contents(
    folder: Path, *, overwrite: bool, keep_files: bool, trains: bool = True
) -> None:
    if keep_files or not folder.is_dir():
        return
    if overwrite:
        refuse_foreign_files(folder)
        return
    names = sorted(entry.name for entry in folder.iterdir() if not is_leftover(entry))
    if names:
        listed = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        remedies = ["Choose a new or empty folder"]
        has_run = trains and earlier_record(folder) is not None
        with contextlib.suppress(InputError):
            refuse_foreign_files(folder)
            use = "replace the results in it" if has_run else "keep these files beside the results"
            if trains:
                remedies.append(f"pass --overwrite_output_dir to {use}")
        if has_run:
            remedies.append("pass --resume_from_checkpoint latest to continue the run in it")
        raise InputError(
            f"--output_dir {folder}: the folder is not empty ({listed}). "
            f"{', '.join(remedies[:-1])}{', or ' if len(remedies) > 1 else ''}{remedies[-1]}."
        )


def choose_folder(args: ClassifyArguments, mode: str, *, replaces: bool = False) -> Path:
    """Return the output folder without creating it. All processes return the same folder.

    Args:
        mode: Precision of the run, for the name of a default folder.
        replaces: Whether the folder holds a run that is replaced or continues.

    Raises:
        InputError: `--output_dir` is not empty or cannot be created.
    """

    def choose() -> Path:
        if args.output_dir is None:
            return next(path for path in _default_folders(args, mode) if not path.exists())
        check_output_folder(args.output_dir, overwrite=args.overwrite_output_dir or replaces)
        check_creatable(Path(args.output_dir))
        return Path(args.output_dir)

    return on_main_process(choose)


def with_ended_folder(args: ClassifyArguments, mode: str) -> ClassifyArguments:
    """Return the settings with the default folder in which this command's training has ended.

    They are unchanged if there is none, or if they name a folder.
    """
    if args.output_dir is not None:
        return args
    command = list(redact_command(sys.argv))

    def ended() -> str | None:
        for path in _default_folders(args, mode):
            if not path.exists():
                return None
            if trained_checkpoint(path) and (earlier_record(path) or {}).get("command") == command:
                return str(path)
        return None

    return replace(args, output_dir=on_main_process(ended))


def claim_default_folder(
    args: ClassifyArguments, mode: str, accelerator: Accelerator, chosen: Path
) -> Path:
    """Create and return the default folder of a run. All processes return the same folder.

    Runs that start at the same time choose the same name. The first to create the folder gets it,
    and the others use the next name. The folder is not created earlier, so that a run that is
    refused leaves nothing behind.

    Args:
        accelerator: Accelerator whose trackers will write into the folder.
        chosen: Folder that `choose_folder` returned; used unchanged if `--output_dir` is set.
    """
    if args.output_dir is not None:
        return chosen
    folder = on_main_process(lambda: _claim_default_folder(args, mode)) or chosen
    configuration = accelerator.project_configuration
    configuration.project_dir = configuration.logging_dir = str(folder)
    return folder


def on_main_process(function: Callable[[], T]) -> T:
    """Return on every process what `function` returns on the main process.

    Processes that tried to lock the same folder would refuse each other.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    results: list[T | None] = [function() if PartialState().is_main_process else None]
    broadcast_object_list(results)
    return cast("T", results[0])


def _claim_default_folder(args: ClassifyArguments, mode: str) -> Path | None:
    for path in _default_folders(args, mode):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # `RunFolder` reports the error
            return None
        return path
    return None


def _default_folders(args: ClassifyArguments, mode: str) -> Iterator[Path]:
    source = args.dataset_name or args.train_file or "data"
    stem = f"{mode}-{data_stem(source)}-seed{args.seed}"
    return (Path("runs", stem if n == 1 else f"{stem}-{n}") for n in range(1, sys.maxsize))


def check_creatable(folder: Path) -> None:
    """Check that a folder can be created, or written if it exists.

    Raises:
        InputError: It can be neither created nor written, or is a link.
    """
    refuse_link(folder, "--output_dir")
    nearest = nearest_existing(folder)
    if not is_writable_folder(nearest):
        raise InputError(
            f"--output_dir {folder}: the folder cannot be written, because {nearest} is not a "
            "folder that this user may write to. Choose another folder."
        )


def _is_locked(folder: Path) -> InputError:
    return InputError(
        f"--output_dir {folder}: another run is writing to this folder (process "
        f"{lock_holder_pid(folder)}). Wait until it ends, stop it, or choose another folder."
    )
