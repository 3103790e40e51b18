"""The scripts of pictures: the modules that are joined fit together, which no bundler looks at."""

from __future__ import annotations

import posixpath
import re
from collections import Counter

import pytest

from bpfprof.render import diff_page, page, svg
from bpfprof.render.scripts import asset, joined

PAGES = {
    "page": [f"page/{name}" for name in page._MODULES],
    "diff": [f"page/{name}" for name in diff_page._MODULES],
    "svg": list(svg._MODULES),
}
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[\w./]+)\.js";$', re.MULTILINE)
TOP = re.compile(r"^(export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
every_page = pytest.mark.parametrize("modules", PAGES.values(), ids=PAGES)


def imports_of(module: str) -> list[tuple[str, str]]:
    """(name, the module that it is of)."""
    here = posixpath.dirname(module)
    found = [
        (names, posixpath.normpath(posixpath.join(here, path))) for names, path in IMPORT.findall(asset(f"{module}.js"))
    ]
    return [(name, path) for names, path in found for name in names.split(", ")]


def names_of(module: str) -> dict[str, bool]:
    """Top-level names -> whether they are exported."""
    return {name: bool(export) for export, name in TOP.findall(asset(f"{module}.js"))}


@every_page
def test_what_a_module_imports_is_exported_by_one_before_it(modules: list[str]) -> None:
    for place, module in enumerate(modules):
        text = asset(f"{module}.js")
        assert len(IMPORT.findall(text)) == len(re.findall(r"^import\b", text, re.MULTILINE)), module
        for name, path in imports_of(module):
            assert path in modules[:place], (module, path)
            assert names_of(path).get(name), (module, path, name)
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{module} imports {name} for nothing"


@every_page
def test_names_of_joined_modules_differ(modules: list[str]) -> None:
    count = Counter(name for module in modules for name in names_of(module))
    assert [name for name, times in count.items() if times > 1] == []


@every_page
def test_a_joined_script_imports_and_exports_nothing(modules: list[str]) -> None:
    assert re.findall(r"^(?:import|export)\b.*", joined(modules), re.MULTILINE) == []
