"""Try a finished run on a page in the browser: texts, pairs, sentences, images or sounds.

pip install gradio
python recipes/serving/demo_page.py runs/mine
"""

import sys
from typing import Any

try:
    import gradio

    from ampft import FinishedRun, InputError
except ImportError as error:  # another environment
    hint = f" ({sys.executable}). Run pip install ampft gradio." if error.name else ""
    print(f"error: {error}{hint}", file=sys.stderr)
    sys.exit(2)

FIELDS = {"image": gradio.Image, "sound": gradio.Audio}
PROBABILITY = "probability_"


def make_page(folder: str) -> gradio.Interface:
    """Return a page with a field for each input of a run, which answers as `ampft predict`."""
    run = FinishedRun(folder)
    kind, columns = run.record.data.kind, run.record.data.input_columns
    if kind == "pixels":
        raise InputError(f"{folder}: it predicts masks, which this page does not show.")
    fields = [gradio.Textbox(label=name) for name in columns]
    if kind in FIELDS:
        fields = [FIELDS[kind](label=kind, type="filepath")]
    has_probabilities = kind != "token" and run.record.task != "regression"

    def answer(*inputs: str) -> tuple[str, dict[str, float] | None]:
        row: Any = inputs if len(inputs) > 1 else inputs[0]
        try:
            found = run.predict([row], all_probabilities=has_probabilities).iloc[0]
        except InputError as error:
            raise gradio.Error(str(error)) from error
        shares = {
            name.removeprefix(PROBABILITY): float(value)
            for name, value in found.items()
            if name.startswith(PROBABILITY)
        }
        is_answered = found.get("answered", True)
        return str(found["prediction"]) if is_answered else "(not sure enough)", shares or None

    return gradio.Interface(
        answer,
        fields,
        [gradio.Textbox(label="answer"), gradio.Label(label="probabilities", show_heading=False)],
        title=folder,
        flagging_mode="never",
        analytics_enabled=False,  # nothing leaves this machine
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python recipes/serving/demo_page.py RUN", file=sys.stderr)
        sys.exit(2)
    try:
        page = make_page(sys.argv[1])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    page.launch()
