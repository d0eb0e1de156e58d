"""The distributed package: version, metadata, and a description without broken images."""

import re
import tomllib
from pathlib import Path

import anchorfold

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_newest_release_of_the_changelog_is_this_version():
    releases = re.findall(r"^## \[(.+?)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert releases[0][0] == anchorfold.__version__
    assert releases == sorted(releases, key=lambda release: release[1], reverse=True)


def test_the_description_for_a_package_index_links_to_nothing_in_the_repository():
    text = (ROOT / "README.md").read_text("utf-8")
    for substitution in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)|<img", text) == []
    assert "| | |" not in text, "a table of pictures has lost its pictures"


def test_lancedb_is_an_extra_that_the_development_environment_installs():
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    assert not any("lancedb" in requirement for requirement in project["dependencies"])
    assert any("lancedb" in requirement for requirement in extras["lance"])
    assert "lance" in re.search(r"\[(.*)\]", extras["all"][0]).group(1).split(",")
    assert any(requirement.startswith("anchorfold[all,") for requirement in extras["dev"])
