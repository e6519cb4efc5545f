"""Lines of words fit into the terminal; rows of tables stay whole."""

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

method                       accuracy  macro F1            difference
frozen encoder + regression    0.8185    0.8177    −5.5, −7.9 to −3.2

Further metrics: ROC AUC 0.9138, average precision (of the
rare class, or the second) 0.9249."""
    )


def test_output_that_goes_elsewhere_stays_as_it_is():
    assert fit_terminal(TEXT) == TEXT


def test_a_sentence_whose_second_word_ends_at_the_indentation_has_no_label():
    text = "The choice was made on the validation split, and new rows need not meet it."
    first, second = fit_terminal(text, 60).splitlines()
    assert second == text.removeprefix(first).strip()
