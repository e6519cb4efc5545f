"""Which tests run with every push."""

from pathlib import Path

TESTS = Path(__file__).parent


def test_the_files_of_each_push_exist_and_have_slow_tests(request):
    selection = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    for name in selection.OF_EACH_PUSH:
        path = TESTS.parent / name
        assert path.exists(), name
        assert "mark.slow" in path.read_text(encoding="utf-8"), name
