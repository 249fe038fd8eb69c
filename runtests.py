"""Run the tests from nothing: `python3 runtests.py [--all] [arguments for pytest]`.

Makes a virtual environment in .venv-tests, once for each Python, and runs pytest in it on SQLite
and on PostgreSQL; WORKQUEUE_TEST_DATABASE=sqlite, for example, runs one of them. PostgreSQL comes
with the test dependencies; where it does not, its tests are skipped and say why.

Without --all, tests that start processes or try thousands of cases are left out: some minutes
instead of some twenty.
"""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> int:
    if sys.version_info < (3, 11):
        print(f"Python must be 3.11 or newer, this is {sys.version}.", file=sys.stderr)
        return 2
    python = prepare(ROOT / ".venv-tests" / "{}.{}".format(*sys.version_info))
    wanted = os.environ.get("WORKQUEUE_TEST_DATABASE")
    arguments = sys.argv[1:]
    if "--all" in arguments:
        arguments.remove("--all")
    else:
        arguments = ["-m", "not soak and not slow", *arguments]
    environment = dict(os.environ)
    # The tests start many processes: each would compile Django anew, for a second or two.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    exit_codes = []
    for database in [wanted] if wanted else ["sqlite", "postgresql"]:
        print(f"\nTests on {database}:", flush=True)
        exit_codes.append(
            subprocess.call(
                [python, "-m", "pytest", *arguments],
                cwd=ROOT,
                env={**environment, "WORKQUEUE_TEST_DATABASE": database},
            )
        )
    return max(exit_codes)


def prepare(folder: Path) -> Path:
    """Return the Python of the environment in *folder*, made anew unless it is up to date."""
    python = folder / "bin" / "python"
    stamp = folder / "prepared-for"
    wanted = f"{ROOT} {hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}"
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print(f"Preparing {folder.relative_to(ROOT)} (once, about a minute) ...", flush=True)
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"Python must have venv and ensurepip, got: {error}. On Debian: python3-venv.")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)  # The first with --group.
    subprocess.run([*pip, "--group", "tests", "--editable", "."], check=True, cwd=ROOT)
    stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    sys.exit(main())
