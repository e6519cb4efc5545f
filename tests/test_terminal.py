"""Lines of words wrap in the terminal; columns of a wide table continue below the first."""

import textwrap

from ampft.text.escaping import display_width
from ampft.text.page import Table, terminal_table, wrapped
from ampft.text.terminal import fit_terminal

TEXT = """\
executed   projections float32 x float32 -> float32 (float32 sums), attention float32 x float32
           -> float32 (float32 sums)
steps      3 of 3 applied

method                       accuracy  macro F1            difference
frozen encoder + regression    0.8185    0.8177    −5.5, −7.9 to −3.2

Further metrics: ROC AUC 0.9138, average precision (of the rare class, or the second) 0.9249."""


def test_words_fit_and_keep_their_indentation():
    assert (
        fit_terminal(TEXT, 60)
        == """\
executed   projections float32 x float32 -> float32 (float32
           sums), attention float32 x float32 -> float32
           (float32 sums)
steps      3 of 3 applied

method                       accuracy  macro F1
frozen encoder + regression    0.8185    0.8177

method                               difference
frozen encoder + regression  −5.5, −7.9 to −3.2

Further metrics: ROC AUC 0.9138, average precision (of the
rare class, or the second) 0.9249."""
    )


def test_output_that_goes_elsewhere_stays_as_it_is():
    assert fit_terminal(TEXT) == TEXT


def test_a_sentence_whose_second_word_ends_at_the_indentation_has_no_label():
    text = "The choice was made on the validation split, and new rows need not meet it."
    first, second = fit_terminal(text, 60).splitlines()
    assert second == text.removeprefix(first).strip()


def test_a_wide_table_continues_below_with_its_first_column():
    rows = [("好的产品", "0.5 (0.4 to 0.6)", "a b", "7"), ("bad", "0.25", "", "12345")]
    table = Table(header=("", "share", "words of it", "rows"), rows=rows)
    text = terminal_table(table)
    lines = fit_terminal(text, 30).splitlines()
    assert max(map(display_width, lines)) <= 30
    one, other = lines[:3], lines[4:]
    assert lines[3] == ""
    assert [line.split() for line in one[1:]] == [
        ["好的产品", "0.5", "(0.4", "to", "0.6)"], ["bad", "0.25"]
    ]  # fmt: skip
    assert [line.split() for line in other[1:]] == [["好的产品", "a", "b", "7"], ["bad", "12345"]]
    assert fit_terminal(text, display_width(text.splitlines()[0])) == text


def test_a_paragraph_is_wrapped_anew_and_a_list_is_not():
    sentence = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    paragraph = wrapped(f"{sentence} {sentence}")
    assert fit_terminal(paragraph, 70) == textwrap.fill(f"{sentence} {sentence}", 70)
    assert fit_terminal("- one\n- two", 70) == "- one\n- two"


def test_a_line_with_two_blanks_is_no_table():
    line = f"warning: the text 'a  b  {'c' * 40}' is long"
    assert fit_terminal(line, 30) == line
