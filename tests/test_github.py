"""The files for those who work on the project: workflows, forms, hooks, editors' settings."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import annotated_transformer

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
on_workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def content(path: Path) -> dict:
    """The file's tree. YAML reads the key `on` as true."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(name: str) -> dict[str, dict]:
    return content(GITHUB / "workflows" / f"{name}.yml")["jobs"]


def steps(path: Path) -> list[dict]:
    """Of all jobs of a workflow."""
    return [step for job in jobs(path.stem).values() for step in job.get("steps", [])]


@on_workflows
def test_an_action_is_pinned_by_its_commit_with_its_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), (action, comment)


@on_workflows
def test_a_workflow_may_read_and_only_a_publishing_job_may_more(path: Path) -> None:
    assert content(path)["permissions"] == {"contents": "read"}
    for name, job in jobs(path.stem).items():
        more = job.get("permissions", {})
        assert set(more) <= {"pages", "id-token"}
        if more:
            # What publishes stands in an environment that can ask, and runs nothing of ours.
            assert name == "publish" and job["environment"]
            assert not any("run" in step or "checkout" in step["uses"] for step in job["steps"])


@on_workflows
def test_a_shell_line_takes_no_text_from_an_event(path: Path) -> None:
    """`${{ github.event... }}` in a `run` would let a title or a branch's name run commands."""
    for step in steps(path):
        assert "${{" not in step.get("run", "")


def test_the_version_is_one() -> None:
    version = PROJECT["version"]
    assert annotated_transformer.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest and newest[1] in (version, "Unreleased")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
@pytest.mark.parametrize(
    ("fault", "files"),
    [("\r", ["."]), ("[ \t]$", [".", ":!*.ipynb"]), ("^ *\t", ["*.py"])],
    ids=["CR", "space at the end of a line", "tab"],
)
def test_the_files_are_as_the_editor_is_told(fault: str, files: list[str]) -> None:
    command = ["git", "grep", "-InE", fault, "--", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("", "")


def test_nothing_is_unpickled() -> None:
    """Neither PyTorch's and NumPy's own files, which hold pickles, nor text that is run as code."""
    forbidden = re.compile(
        r"\b(pickle|marshal|shelve|joblib)\b|\btorch\.(load|save)\b|\bnp\.load\b"
        r"|(?<![\w.])(eval|exec)\("
    )
    package = sorted((ROOT / "annotated_transformer").rglob("*.py"))
    assert len(package) > 30
    found = [(p.name, forbidden.search(p.read_text(encoding="utf-8"))) for p in package]
    assert [(name, use) for name, use in found if use] == []
