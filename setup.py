"""Puts the recipes into the package, so that `ampft recipe` has them without a clone."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copies `recipes/` beside the modules; an editable install reads them where they are."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "ampft", "recipes")
            recipes = Path("recipes")
            for path in (*recipes.rglob("*.py"), *recipes.rglob("*.html")):
                copy = target / path.relative_to("recipes")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithRecipes})
