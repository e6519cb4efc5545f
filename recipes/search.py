"""Search settings with Optuna, while a referee keeps only what is better on rows of their own.

    python recipes/search.py train.csv validation.csv test.csv

It needs `pip install "ampft[search]"`. Optuna sees validation scores only: it proposes settings,
and stops a race over the seeds that can no longer win. A trial whose validation score exceeds the
best's is judged on the test rows, with the error held over all trials (`docs/judge.md`).
"""

import sys
from typing import Any

import optuna

import ampft

SEEDS = (1, 2, 3, 4, 5)


def main(train: str, validation: str, test: str, *, trials: int = 20, **fixed: Any) -> None:
    """Start a ledger with usual settings, and let Optuna look for better ones."""

    def objective(trial: optuna.Trial) -> float:
        chosen: dict[str, Any] = {
            "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.1),
        }
        scores, folders = [], []
        for seed in SEEDS:
            run = ampft.finetune(train, validation=validation, test=test, seed=seed,
                                 output_dir=f"search/{trial.number}-seed{seed}",
                                 **fixed, **chosen)  # fmt: skip
            assert run.record.best is not None, "it keeps the best weights on the validation rows"
            scores.append(run.record.best.value)
            folders.append(run.folder)
            trial.report(scores[-1], step=seed)
            if trial.should_prune():
                raise optuna.TrialPruned
        score, answer = sum(scores) / len(scores), "not judged"
        if trial.number == 0:
            ampft.judge("search/ledger", best=folders, settings=ampft.LedgerSettings(tries=trials))
            answer = "first best"
        elif score > study.user_attrs["best"]:
            answer = str(ampft.judge("search/ledger", candidate=folders).answer)
        trial.set_user_attr("answer", answer)
        if answer in ("first best", "keep"):
            study.set_user_attr("best", score)
        return score

    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
    study.enqueue_trial({"learning_rate": 1e-4, "weight_decay": 0.0})  # the first best
    study.optimize(objective, n_trials=trials)
    columns = ["number", "state", "value", "params_learning_rate", "user_attrs_answer"]
    print(study.trials_dataframe()[columns].to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:4])
