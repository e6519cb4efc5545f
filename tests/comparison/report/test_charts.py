import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from example_comparison import broken, realistic

from ampft.comparison.charts import Axis, element, picture
from ampft.comparison.report.html import matrix_cells
from ampft.comparison.report.prediction_tables import confusions
from ampft.comparison.report.run_charts import (
    LAST,
    arm_styles,
    loss_chart,
    loss_difference_chart,
    scale_chart,
    short_names,
    validation_chart,
)
from ampft.comparison.report.strips import (
    columns,
    difference_axis,
    difference_scale,
    difference_strip,
)
from ampft.text import page
from ampft.text.numbers import Units

STYLE = Path(page.__file__).with_name("style.css").read_text(encoding="utf-8")


def test_children_and_values_are_escaped_unless_they_are_markup():
    made = element("g", "<b>&", element("text", "</text>"), class_='"x', aria_label="<")
    assert made == (
        '<g class="&#34;x" aria-label="&lt;">&lt;b&gt;&amp;<text>&lt;/text&gt;</text></g>'
    )


def test_a_picture_has_a_text_alternative():
    made = picture(height=20, alt='two & "three"', class_="chart")
    assert 'role="img" aria-label="two &amp; &#34;three&#34;"' in made
    assert "<title>two &amp; &#34;three&#34;</title>" in made


def test_positions_are_linear_and_clipped_at_the_ends():
    axis = Axis(-1, 3, 10, 90)
    assert [axis.at(value) for value in (-1, 1, 3)] == [10, 50, 90]
    assert [axis.at(value) for value in (-100, 100)] == [10, 90]
    assert axis.percent(0) == "30%"
    assert Axis(2, 2, 0, 100).at(2) == 50


@pytest.mark.parametrize("span", [1e-9, 0.013, 1, 7, 300, 65536, 1e12])
def test_ticks_are_round_few_and_inside(span):
    axis = Axis(-0.3 * span, 0.7 * span, 0, 100)
    ticks = axis.ticks(5)
    assert 2 <= len(ticks) <= 6
    assert all(axis.low <= tick <= axis.high + 1e-9 * span for tick in ticks)
    assert 0 in ticks
    mantissa = (ticks[1] - ticks[0]) / 10 ** math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)
    assert round(mantissa, 6) in (1, 2, 5)


def test_the_dot_and_the_whiskers_are_at_their_values():
    comparison = realistic()
    arm, style = comparison.arm("bf16"), arm_styles(comparison.arms)[2]
    axis = difference_axis(comparison)
    strip = difference_strip(comparison, arm, style, axis)
    assert arm.difference is not None
    low, high = (axis.percent(end) for end in arm.difference.interval95)
    assert f'x1="{low}" x2="{high}"' in re.sub(r' y1="[^"]*"', "", strip)
    assert f'<svg x="{axis.percent(arm.difference.estimate)}"' in strip
    assert "95 % CI" in strip


def alternative(svg):
    return re.search('aria-label="([^"]*)"', svg)[1]


def signed(value):
    return f"{100 * value:+.1f}".replace("-", "−")


def test_text_alternatives_say_what_is_drawn():
    comparison = realistic()
    arm = comparison.arm("bf16")
    drawn = {each.name: each for each in columns(comparison, arm_styles(comparison.arms))}
    found = {
        name: alternative(each.strips.get("bf16", 'aria-label=""')) for name, each in drawn.items()
    }
    assert "modes" not in drawn  # the cards have these strips
    low, high = map(signed, arm.difference_fp32.interval95)
    assert found["in-fp32"].startswith(
        f"bf16 minus fp32: {signed(arm.difference_fp32.estimate)} points, 95 % CI {low} to {high};"
    )
    times = ", ".join(f"{1000 * seconds:.3g}" for seconds in arm.speed.step_seconds)
    assert found["speed"] == f"bf16: median step times of {times} ms"
    assert found["memory"].startswith(f"bf16: baseline {arm.memory.baseline / 2**20:.0f} MiB")
    assert found["memory"].endswith(f"peak {arm.memory.peak / 2**20:.0f} MiB")
    assert alternative(drawn["in-fp32"].strips["fp32"]) == "fp32: difference to fp32 unknown"
    for index, row in enumerate(arm.classes):
        shown = alternative(drawn["classes"].strips[row.name])
        assert f"bf16 {signed(row.f1_difference)}" in shown
        other = comparison.arm("fp16").classes[index].f1_difference
        assert shown.endswith(f"fp16 {signed(other)}")


@pytest.mark.parametrize(
    ("is_share", "words"), [(True, "differences in points"), (False, "differences")]
)
def test_a_scale_says_points_exactly_where_it_has_them(is_share, words):
    axis = Axis(-0.02, 0.02, 5, 95)
    scale = difference_scale(axis, Units("metric", 0.01, is_share=is_share))
    assert alternative(scale) == f"Scale: {words}"
    assert (">+2<" in scale) == is_share
    assert (">+0.02<" in scale) == (not is_share)


@pytest.mark.slow
def test_a_diverging_run_does_not_flatten_the_other_lines():
    comparison = broken()
    diverging = comparison.arms[3]
    loss = (*diverging.curves[1].loss[:-2], 1e30, None)
    arms = list(comparison.arms)
    arms[3] = replace(
        diverging, curves=(diverging.curves[0], replace(diverging.curves[1], loss=loss))
    )
    chart = loss_chart(replace(comparison, arms=tuple(arms)), arm_styles(arms))
    assert chart is not None
    assert chart.is_clipped
    uncut = loss_chart(comparison, arm_styles(comparison.arms))
    assert uncut is not None
    assert not uncut.is_clipped
    assert re.findall(r'class="tick end">([\d.]+)<', chart.svg)[:3] == ["0", "1", "2"]


def test_the_mean_of_an_unstable_arm_is_not_drawn():
    comparison = broken()
    styles = arm_styles(comparison.arms)
    chart, differences = (of(comparison, styles) for of in (loss_chart, loss_difference_chart))
    assert chart is not None
    assert 'class="mean a0"' in chart.svg
    assert 'class="mean a3"' not in chart.svg
    assert 'class="seed lone a3"' in chart.svg
    assert differences is not None
    assert 'class="mean a2"' in differences.svg
    assert " a3" not in differences.svg


def test_losses_are_shown_as_differences_with_the_same_seed():
    comparison = realistic()
    base, *others = comparison.arms
    raised = tuple(replace(c, loss=tuple(x + 0.25 for x in c.loss)) for c in base.curves)
    shifted = [replace(arm, curves=raised) for arm in others]
    comparison = replace(comparison, arms=(base, *shifted))
    styles = arm_styles(comparison.arms)
    differences = loss_difference_chart(comparison, styles)
    assert "at the end placebo 0.2500, bf16 0.2500" in differences.svg
    # The curves themselves would coincide, so only the baseline's is drawn.
    assert loss_chart(comparison, styles).styles == styles[:1]


def test_charts_in_which_nothing_happens_are_hidden():
    comparison = realistic()
    styles = arm_styles(comparison.arms)
    once = with_curves(comparison, validation_steps=(100,), validation_metric=(0.8,))
    assert validation_chart(once, styles) is None
    calm = with_curves(comparison, loss_scale=(65536.0,) * len(comparison.arms[0].curves[0].steps),
                       skipped=())  # fmt: skip
    assert scale_chart(calm, styles) is None


def test_skipped_steps_are_marked_and_counted():
    comparison = realistic()
    chart = scale_chart(comparison, arm_styles(comparison.arms))
    assert chart is not None
    counts = comparison.arm("fp16").skipped_steps
    assert f"fp16 skipped {', '.join(map(str, counts))} steps per seed" in chart.svg
    ticks = sum(path.count("M") for path in re.findall(r'<path d="([^"]*)" class="skip', chart.svg))
    assert ticks == sum(counts)


def test_without_measurements_there_is_no_chart():
    arms = [replace(arm, curves=()) for arm in realistic().arms]
    comparison = replace(realistic(), arms=tuple(arms))
    for chart in (loss_chart, validation_chart, scale_chart):
        assert chart(comparison, arm_styles(arms)) is None


def test_every_arm_has_its_own_style_up_to_the_last_colour():
    arm = realistic().arms[2]
    arms = [*realistic().arms[:2], *(replace(arm, name=f"m{n}") for n in range(LAST - 1))]
    numbers = [style.number for style in arm_styles(arms)]
    assert numbers == list(range(LAST + 1))
    assert arm_styles([*arms, arm])[-1].number == 2


def test_shades_grow_with_the_share_of_the_row():
    arm = replace(realistic().arms[0], confusion=((90, 10, 0), (0, 4, 0), (0, 0, 0)))
    cells = matrix_cells(arm, None)
    assert [cell.shade for cell in cells[0]] == [8, 3, 0]
    assert [cell.is_correct for cell in cells[1]] == [False, True, False]
    assert [cell.shade for cell in cells[2]] == [0, 0, 0]


def test_a_row_that_only_the_baseline_has_is_shaded():
    # The first row of spans counts those that are not in the data.
    base = replace(realistic().arms[0], confusion=((0, 4, 0), (1, 4, 0), (0, 0, 3)))
    arm = replace(base, confusion=((0, 0, 0), (1, 4, 0), (0, 0, 3)))
    assert [cell.shade for cell in matrix_cells(arm, base)[0]] == [0, 8, 0]


def test_the_largest_confusions_come_first():
    base = realistic().arms[0]
    arms = tuple(
        replace(base, confusion=matrix)
        for matrix in (((9, 1, 0), (2, 5, 0), (0, 0, 1)), ((9, 4, 0), (0, 7, 0), (0, 0, 1)))
    )
    table = confusions(replace(realistic(), arms=arms, label_names=("a", "b", "c")))
    assert [tuple(getattr(cell, "text", cell) for cell in row) for row in table.rows] == [
        ("a", "b", "1", "4"),
        ("b", "a", "2", "0"),
    ]


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_contrast_of_text_and_of_lines(theme):
    colours = dict(
        re.findall(r"--(\w+): (#\w+);", re.findall(r":root \{(.*?)\}", STYLE, re.S)[theme])
    )
    for name in ("ink", "quiet", "notice"):
        assert contrast(colours[name], colours["page"]) >= 4.5, name
    for number in range(LAST + 1):
        assert contrast(colours[f"a{number}"], colours["page"]) >= 3, number


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def with_curves(comparison, **values):
    arms = [
        replace(arm, curves=tuple(replace(one, **values) for one in arm.curves))
        for arm in comparison.arms
    ]
    return replace(comparison, arms=tuple(arms))


def test_a_single_point_has_a_mark():
    comparison = realistic()
    once = with_curves(comparison, steps=(100,), loss=(0.8,), loss_scale=None)
    single, several = (
        loss_chart(one, arm_styles(one.arms)).svg.count('class="mark ')
        for one in (once, comparison)
    )
    assert (single, several) == (len(comparison.arms), 0)


def test_a_constant_loss_scale_has_one_tick():
    comparison = realistic()
    constant = [
        replace(
            arm,
            curves=tuple(
                replace(c, loss_scale=c.loss_scale and (65536.0,) * len(c.steps))
                for c in arm.curves
            ),
        )
        for arm in comparison.arms
    ]
    chart = scale_chart(replace(comparison, arms=tuple(constant)), arm_styles(comparison.arms))
    assert re.findall(r"2<tspan[^>]*>(\S+?)</tspan>|>2(\S)<", chart.svg)
    assert chart.svg.count('class="grid"') == 1


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["fp32", "bf16"], ["fp32", "bf16"]),
        (["learning_rate=0.1", "warmup"], ["learning_…", "warmup"]),
        (["class_weights_and_focal", "class_weights_and_smooth"], ["…focal", "…smooth"]),
        (["learning_rate=0.01", "learning_rate=0.001"], ["…1", "…01"]),
        (["learning_rate_a_focal_x", "learning_rate_a_focal_y", "other_name_here"], None),
    ],
)
def test_shortened_names_stay_different(names, expected):
    shorter = short_names(names)
    assert len(set(shorter.values())) == len(names)
    assert all(len(each) <= 10 for each in shorter.values())
    if expected:
        assert [shorter[name] for name in names] == expected
