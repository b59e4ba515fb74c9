"""What every test run has in common: one thread, checked shapes,
and notebooks whose printed numbers are claims.

Standing in the root, this file also puts the repository on `sys.path`,
so the tests run from a bare checkout.
"""

import os
import re
from pathlib import Path

# Before torch is imported. Notebook kernels inherit these,
# so one notebook means one thread on any machine.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
ROOT = str(Path(__file__).parent)
PLACES = (ROOT, f"{ROOT}/book", os.environ.get("PYTHONPATH"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, PLACES))

import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

from tools.printed import Printed  # noqa: E402

# Every annotated shape in the package is checked in this process. Kernels and subprocesses run
# without the checks, and so do the modules that know no tensors: a check of each call made drawing
# sentences and reading trees four times slower.
BOOK = Path(ROOT) / "book"
CHECKED = [(Path(ROOT), "annotated_transformer"), (BOOK, "lab")]
install_import_hook(
    [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for root, package in CHECKED
        for path in (root / package).rglob("*.py")
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    ],
    "beartype.beartype",
)

RTOL_TAG = re.compile(r"nbval-rtol-([\d.]+)")
# By measured time, so that two workers finish together.
SLOWEST_FIRST = (
    "6_1_translation.ipynb", "test_loop.py", "test_miniature.py",
    "test_end_to_end.py", "test_experiments.py", "test_make_book.py", "test_benchmarks.py",
    "6_3_parsing.ipynb", "6_2_variations.ipynb", "5_2_training.ipynb", "5_4_regularization.ipynb",
    "5_3_optimizer.ipynb", "3_1_stacks.ipynb", "test_typed_door.py",
)  # fmt: skip


def _compare_printed_numbers_closely() -> None:
    """Let nbval compare what a cell prints as `Printed`; a tag such as nbval-rtol-0.1
    widens one cell's tolerance."""
    from nbval.plugin import IPyNbCell

    exact = IPyNbCell.sanitize

    def sanitize(self, output):
        cleaned = exact(self, output)
        if not isinstance(cleaned, str):
            return cleaned
        printed = Printed(cleaned)
        for tag in self.cell.metadata.get("tags", []):
            if match := RTOL_TAG.fullmatch(tag):
                printed.rtol = float(match[1])
        return printed

    IPyNbCell.sanitize = sanitize


class DeadKernel(RuntimeError):
    """The process that runs a notebook's cells has ended."""


def _wait_as_long_as_the_kernel_lives() -> None:
    """Let nbval wait for a cell however slow it is,
    and fail it within a second or so if its kernel is dead.

    nbval alone stops a cell by the clock (and gives up on a busy machine that takes 5 s to
    hand over an output, or 10 s to start a kernel), but waits for the answer of a dead kernel
    until that clock has run out.
    """
    from queue import Empty

    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell

    get_once, run_cell = RunningKernel.get_message, IPyNbCell.runtest

    def get_message(self, stream, timeout=None):
        while True:
            alive = self.is_alive()  # asked first: what a kernel sent before it died is still read
            try:
                return get_once(self, stream, timeout=1)
            except Empty:
                if not alive:
                    raise DeadKernel from None

    def ensure_iopub_up(self):
        # Until the kernel's outputs arrive: the first ones may be lost while we subscribe.
        while True:
            request = self.kc.kernel_info()
            self.await_reply(request)
            try:
                while True:
                    message = get_once(self, "iopub", timeout=1)
                    if message["parent_header"].get("msg_id") == request:
                        return
            except Empty:
                if not self.is_alive():
                    raise DeadKernel("the kernel died while it started") from None

    def runtest(self):
        if (died_in := getattr(self.parent, "died_in", None)) is not None:
            pytest.skip(f"the kernel died in cell {died_in}")
        try:
            run_cell(self)
        except RuntimeError as error:
            if self.parent.kernel.is_alive():
                raise
            self.parent.died_in = self.cell_num
            when = "while this cell ran" if isinstance(error, DeadKernel) else "before this cell"
            self.raise_cell_error(f"The kernel died {when}; did memory run out?")

    RunningKernel.get_message = get_message
    RunningKernel._ensure_iopub_up = ensure_iopub_up  # noqa: SLF001  nbval sets a limit there
    IPyNbCell.runtest = runtest


_compare_printed_numbers_closely()
_wait_as_long_as_the_kernel_lives()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest before all, then chapters before tests, so that two workers finish together."""
    place = {name: i for i, name in enumerate(SLOWEST_FIRST)}
    items.sort(
        key=lambda item: (place.get(item.path.name, len(place)), item.path.suffix != ".ipynb")
    )
    for item in items:
        if item.path.suffix == ".ipynb" and "stderr" not in item.parent.skip_compare:
            # Progress goes there; it is neither stored nor compared.
            item.parent.skip_compare += ("stderr",)
