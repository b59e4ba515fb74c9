"""The files for those who work on the project: workflows, forms, hooks, editors' settings."""

import re
import shutil
import subprocess
import tomllib
from collections import Counter
from glob import glob
from pathlib import Path

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

import annotated_transformer

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
on_workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def content(path: Path) -> dict:
    """The file's tree. YAML reads the key `on` as true."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(name: str) -> dict[str, dict]:
    return content(GITHUB / "workflows" / f"{name}.yml")["jobs"]


def steps(path: Path) -> list[dict]:
    """Of all jobs of a workflow."""
    return [step for job in jobs(path.stem).values() for step in job.get("steps", [])]


# The schemas


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `make workflows` gives check-jsonschema, in a copy that a test may spoil."""
    if not shutil.which("make"):
        pytest.skip("no make")
    shutil.copytree(GITHUB, tmp_path / ".github")
    for name in ("Makefile", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # those of the `make test` that runs this
    command = ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/.installed"]
    command.append("workflows")
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    program, arguments = ".venv/bin/check-jsonschema ", []
    for line in lines:
        assert line.startswith(program)
        words = line.removeprefix(program).split()
        arguments.append([name for word in words for name in sorted(glob(word)) or [word]])
    return arguments


def complaints(checks: list[list[str]]) -> list[str]:
    results = [CliRunner().invoke(check_jsonschema.main, arguments) for arguments in checks]
    return [result.output for result in results if result.exit_code != 0]


def test_every_file_for_github_keeps_to_its_schema(checks: list[list[str]]) -> None:
    named = {name for arguments in checks for name in arguments}
    assert {str(path.relative_to(ROOT)) for path in GITHUB.rglob("*.yml")} <= named
    assert complaints(checks) == []


@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("workflows/tests.yml", "runs-on:", "run-on:", "run-on"),
        ("workflows/pages.yml", "    timeout-minutes: 60\n", "", "timeout-minutes"),
        ("dependabot.yml", "interval: monthly", "interval: sometimes", "sometimes"),
        ("ISSUE_TEMPLATE/book.yml", "type: textarea", "type: textbox", "textbox"),
        ("ISSUE_TEMPLATE/config.yml", "_enabled: false", "_enabled: never", "never"),
    ],
)
def test_a_misspelt_key_is_refused(
    checks: list[list[str]], name: str, right: str, wrong: str, said: str
) -> None:
    path = Path(".github") / name
    text = path.read_text(encoding="utf-8")
    assert right in text
    path.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    answer = "".join(complaints([arguments for arguments in checks if str(path) in arguments]))
    assert name in answer and said in answer


def test_lint_asks_the_schemas() -> None:
    assert re.search(r"^lint:.*\bworkflows\b", MAKEFILE, flags=re.M)


# What the schemas do not know


@on_workflows
def test_an_action_is_pinned_by_its_commit_with_its_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), (action, comment)


def test_the_same_action_has_one_pin_everywhere() -> None:
    texts = (path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pins = {pin for text in texts for pin in re.findall(r"uses: ([^.\s@][^\s@]*)@(.*)", text)}
    actions = Counter(action for action, _ in pins)
    assert [action for action, n in actions.items() if n > 1] == []


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
def test_a_checkout_leaves_no_key_behind(path: Path) -> None:
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@on_workflows
def test_no_workflow_repeats_the_repositorys_address(path: Path) -> None:
    assert PROJECT["name"] + "/" + PROJECT["name"] not in path.read_text(encoding="utf-8")


@on_workflows
def test_a_shell_line_takes_no_text_from_an_event(path: Path) -> None:
    """`${{ github.event... }}` in a `run` would let a title or a branch's name run commands."""
    for step in steps(path):
        assert "${{" not in step.get("run", "")


def test_the_tests_run_on_every_python_from_the_oldest() -> None:
    tests = jobs("tests")
    pythons = tests["tests"]["strategy"]["matrix"]["python"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert pythons == [f"3.{minor}" for minor in range(int(oldest.split(".")[1]), 14)]
    (setup,) = [step for step in tests["floor"]["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == oldest


def test_elsewhere_the_packages_tests_run_and_no_folder_of_them_is_left_out() -> None:
    """Except the page's, which need Node and browsers, the lab's, which are the book's, and those
    of other people's programs."""
    (run,) = re.findall(r"(?s)pytest .*", (GITHUB / "workflows" / "tests.yml").read_text())
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert set(re.findall(r"tests/(\w+)", run)) == folders - {"lab", "page", "attacks", "readers"}


def test_the_version_is_one() -> None:
    version = PROJECT["version"]
    assert annotated_transformer.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest and newest[1] in (version, "Unreleased")


def test_a_release_waits_for_the_tests() -> None:
    release = jobs("release")
    assert release["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert set(release["publish"]["needs"]) == {"tests", "ceiling", "build"}
    publish = release["publish"]["steps"][-1]
    assert publish["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert publish["with"] == {"attestations": True}


def test_a_release_is_audited_and_has_a_bill_of_materials() -> None:
    build = jobs("release")["build"]["steps"]
    (run,) = [step["run"] for step in build if "pip_audit" in step.get("run", "")]
    assert run.index("cyclonedx_py") < run.index("uninstall") < run.index("pip_audit --strict")
    kept = [step["with"] for step in build if "with" in step]
    (bill,) = [files for files in kept if files.get("name") == "bill-of-materials"]
    assert re.findall(r"-o (\S+)", run) == [bill["path"]]


def test_pages_are_published_from_main_alone() -> None:
    condition = jobs("pages")["publish"]["if"]
    assert "github.ref == 'refs/heads/main'" in condition
    assert "github.event_name != 'pull_request'" in condition


# Hooks and editors


def test_what_workflows_and_hooks_make_is_in_the_makefile() -> None:
    commands = [step.get("run", "") for path in WORKFLOWS for step in steps(path)]
    (repository,) = content(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"  # the pinned tools judge, not others
    commands += [hook["entry"] for hook in repository["hooks"]]
    made = set(re.findall(r"^make (?:--silent )?(\w+)", "\n".join(commands), flags=re.M))
    assert {"test", "floor", "html", "lint"} <= made
    assert made <= set(re.findall(r"^(\w+):", MAKEFILE, flags=re.M))


def tracked() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    named = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in named.split("\0") if name and (ROOT / name).is_file()]


def test_the_files_are_as_the_editor_is_told() -> None:
    """UTF-8, LF, a last line that ends, no space at the end of a line, no tab in Python."""
    wrong = []
    for path in tracked():
        data = path.read_bytes()
        if not data or path.suffix in (".png", ".model", ".safetensors") or b"\0" in data:
            continue
        text = data.decode("utf-8")
        faults = {"CR": r"\r", "no newline at the end": r"[^\n]\Z"}
        if path.suffix != ".ipynb":
            faults["space at the end of a line"] = r"[ \t]$"
        if path.suffix == ".py":
            faults["tab"] = r"^ *\t"
        found = [name for name, fault in faults.items() if re.search(fault, text, flags=re.M)]
        wrong += [(str(path.relative_to(ROOT)), name) for name in found]
    assert wrong == []


def test_editor_linter_and_formatter_agree_about_the_columns() -> None:
    told = (ROOT / ".editorconfig").read_text(encoding="utf-8")
    python = told.partition("[*.py]")[2].partition("\n[")[0]
    columns = SETTINGS["tool"]["ruff"]["line-length"]
    assert f"max_line_length = {columns}\n" in python
    said = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"at most {columns} columns" in said and "ruff format" in said


# What SECURITY.md promises


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


def test_the_floors_that_are_promised_are_those_of_the_package() -> None:
    promised = re.findall(r"`(\w+>=[\d.]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(promised) == 2 and set(promised) <= set(PROJECT["dependencies"])


def test_the_scripts_that_are_promised_are_there() -> None:
    """Each hostile file that SECURITY.md and the changelog speak of, and as many."""
    attacks = {path.stem for path in (ROOT / "tests" / "attacks").glob("*.py")} - {"attack"}
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert set(re.findall(r"python tests/attacks/attack\.py (\w+)", security)) <= attacks
    counted = re.search(r"`tests/attacks/`: (\d+) hostile", (ROOT / "CHANGELOG.md").read_text())
    assert counted and int(counted[1]) == len(attacks)
