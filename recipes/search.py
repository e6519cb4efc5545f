"""Search settings with Optuna, while a referee keeps only what is better on rows of their own.

    python recipes/search.py train.csv validation.csv test.csv

It needs `pip install "ampft[search]"`. Optuna sees validation scores only: it proposes settings,
and stops a race over the seeds that can no longer win. A trial whose validation score exceeds the
best's is judged on the test rows, with the error held over all trials (`docs/judge.md`).

After an interruption, the same command continues: `search/study.log` has the trials so far, and a
run that finished is not trained again.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

try:
    import optuna
    from filelock import FileLock, Timeout
    from optuna.storages.journal import JournalFileBackend, JournalStorage
    from optuna.trial import TrialState

    import ampft
except ImportError as error:  # a forgotten environment
    hint = f' ({sys.executable}). Run pip install "ampft[search]".' if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)

SEEDS = (1, 2, 3, 4, 5)
FOLDER = Path("search")


def main(*files: str, trials: int = 20, **fixed: Any) -> None:
    """Start a ledger with usual settings, and let Optuna look for better ones."""
    if len(files) != 3:
        raise ampft.InputError("usage: python search.py train.csv validation.csv test.csv")
    if len(set(SEEDS)) < 3:
        raise ampft.InputError(f"SEEDS = {SEEDS}: a change is judged over at least 3. Add seeds.")
    if missing := [name for name in files if not Path(name).is_file()]:
        raise ampft.InputError(f"{', '.join(missing)}: no such file. Choose existing files.")
    digests = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files]
    purpose = {"files": digests, "trials": trials, "seeds": list(SEEDS), "settings": repr(fixed)}
    log = FOLDER / "study.log"
    if FOLDER.exists() and not log.exists() and any(FOLDER.iterdir()):
        raise ampft.InputError(f"{FOLDER}/ has files that no search wrote. Move it.")
    FOLDER.mkdir(exist_ok=True)
    try:
        with FileLock(FOLDER / "lock", timeout=0):
            (FOLDER / "study.log.lock").unlink(missing_ok=True)  # of a search that was killed
            study = open_study(log, purpose)
            for number in range(trials):
                end_trial(study, number, files, fixed)
    except Timeout:
        raise ampft.InputError(f"{FOLDER}/: another search is running in it.") from None
    columns = ["number", "state", "value", "params_learning_rate", "user_attrs_answer"]
    print(study.trials_dataframe()[columns].to_string(index=False))


def open_study(log: Path, purpose: dict[str, Any]) -> optuna.Study:
    """Return the study of a log, a new one if it has none."""
    storage = JournalStorage(JournalFileBackend(str(log)))
    options: dict[str, Any] = {
        "study_name": "search", "storage": storage, "pruner": optuna.pruners.MedianPruner(),
    }  # fmt: skip
    if optuna.get_all_study_names(storage):
        study = optuna.load_study(**options)
    else:
        study = optuna.create_study(direction="maximize", **options)
    if not any(FOLDER.glob("*-seed*")):  # nothing is trained yet
        study.set_user_attr("purpose", purpose)
    if not study.trials:
        study.enqueue_trial({"learning_rate": 1e-4, "weight_decay": 0.0})  # the first best
    if other := [n for n, v in purpose.items() if study.user_attrs.get("purpose", {}).get(n) != v]:
        raise ampft.InputError(
            f"{FOLDER}/ has a study with other {' and '.join(other)}. Move it, or search with the "
            "same ones to continue."
        )
    return study


def end_trial(
    study: optuna.Study, number: int, files: tuple[str, ...], fixed: dict[str, Any]
) -> None:
    """Begin or continue a trial, unless it has ended."""
    known = study.trials[number] if number < len(study.trials) else None
    if known is not None and known.state.is_finished():
        return
    if known is None or known.state == TrialState.WAITING:
        trial = study.ask()
    else:
        trial = optuna.trial.Trial(study, known._trial_id)
    try:
        score, folders = train_seeds(trial, files, fixed)
        answer = trial.user_attrs.get("answer") or judged(study, number, score, folders)
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except ampft.TrainingStopped as error:
        if number == 0:  # without a first best there is nothing to compare with
            raise
        trial.set_user_attr("answer", f"stopped: {error}")
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_user_attr("answer", answer)
        if answer in ("first best", "keep"):
            study.set_user_attr("best", score)
        study.tell(trial, score)


def train_seeds(
    trial: optuna.Trial, files: tuple[str, ...], fixed: dict[str, Any]
) -> tuple[float, list[Path]]:
    """Train a trial's settings with all seeds, while it can win; return mean score and runs."""

    def suggested(name: str, low: float, high: float, *, log: bool = False) -> float:
        # A generator of its own, so that an interrupted trial gets the same settings again.
        seed = int(hashlib.sha256(f"{trial.number} {name}".encode()).hexdigest()[:8], 16)
        trial.study.sampler = optuna.samplers.TPESampler(seed=seed)
        return trial.suggest_float(name, low, high, log=log)

    chosen: dict[str, Any] = {
        "learning_rate": suggested("learning_rate", 1e-5, 1e-3, log=True),
        "weight_decay": suggested("weight_decay", 0.0, 0.1),
    }
    train, validation, test = files
    scores, folders = [], []
    for seed in SEEDS:
        run = ampft.finetune(train, validation=validation, test=test, seed=seed,
                             output_dir=FOLDER / f"{trial.number}-seed{seed}",
                             resume_from_checkpoint="latest", **fixed, **chosen)  # fmt: skip
        assert run.record.best is not None, "it keeps the best weights on the validation rows"
        scores.append(run.record.best.value)
        folders.append(run.folder)
        if seed not in trial.study.trials[trial.number].intermediate_values:
            trial.report(scores[-1], step=seed)
        if trial.should_prune():
            raise optuna.TrialPruned
    return sum(scores) / len(scores), folders


def judged(study: optuna.Study, number: int, score: float, folders: list[Path]) -> str:
    """Return the referee's answer, which it repeats if it has judged these runs before."""
    ledger = FOLDER / "ledger"
    if number > 0:
        if score <= study.user_attrs["best"]:
            return "not judged"
        return str(ampft.judge(ledger, candidate=folders).answer)
    if not any(ledger.glob("entry-*.json")):
        tries = study.user_attrs["purpose"]["trials"]
        ampft.judge(ledger, best=folders, settings=ampft.LedgerSettings(tries=tries))
    return "first best"


if __name__ == "__main__":
    sys.exit(ampft.run_main(lambda: main(*sys.argv[1:])))
