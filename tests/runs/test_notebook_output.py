"""In a notebook: progress without a line per update, and reports as tables."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ampft.tasks.single_label import Predictions
from ampft.text import terminal


@pytest.fixture
def notebook(monkeypatch):
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("notebook")
def test_without_widgets_no_bar_is_written(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    bar = terminal.progress_bar(total=50)
    assert bar.disable
    for _ in range(50):
        bar.update()
    bar.close()
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_a_bar_is_written(monkeypatch):  # negative control
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = terminal.progress_bar(total=2, mininterval=0)
    assert not bar.disable
    bar.update()
    bar.close()
    assert "1/2" in sys.stderr.getvalue()


def test_a_report_is_a_table():
    truth = np.array([0, 1, 1])
    report = Predictions(
        example_ids=np.arange(3),
        labels=truth,
        probabilities=np.eye(2, dtype=np.float32)[truth],
        label_names=("a", "<script>x</script>"),
        split="test",
    ).report()
    html = report._repr_html_()
    assert html.count("<table") == len(report.tables())
    assert "1.000" in html
    assert "<script>" not in html
