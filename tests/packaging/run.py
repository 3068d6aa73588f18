"""Builds and tests what a user installs: source distribution, wheel, and the README's commands.

python tests/packaging/run.py [FOLDER]

Run it with a Python that has maturin. It leaves both packages in FOLDER (`dist`). pip may
install only wheels; if the package index has none, the script prints so and exits with 0.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.doc_commands import README, add_examples, python_blocks, run_commands  # noqa: E402

LIBRARIES = ("rtit/_core.abi3.so", "rtit/_plugin/librtit_qemu.so")
PORTABLE, LINUX = "pypi", "linux"
"""Whether the wheel is to be for other machines of this kind as well (a manylinux tag)."""
ROOT_FOLDER = Path("/")
NO_VARIABLES: Mapping[str, str] = {}


class NoWheelError(Exception):
    """The package index has no wheel."""


def run_command(
    *command: str | Path, cwd: Path = ROOT_FOLDER, env: Mapping[str, str] = NO_VARIABLES
) -> str:
    """Run a command and return its output; `env` is added to the environment.

    Raises RuntimeError with the output if the command fails.
    """
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode and "No matching distribution found" in ended.stdout:
        raise NoWheelError(ended.stdout.strip().splitlines()[-1])
    if ended.returncode:
        raise RuntimeError(f"{command}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def build_source_distribution(folder: Path) -> Path:
    """Build the source distribution with the project's own back end."""
    build = "import rtit_build, sys; rtit_build.build_sdist(sys.argv[1])"
    environment = {
        "PYTHONPATH": str(ROOT / "build_backend"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # maturin
    }
    run_command(sys.executable, "-c", build, folder, cwd=ROOT, env=environment)
    (path,) = folder.glob("*.tar.gz")
    return path


def check_source_distribution(path: Path) -> None:
    """Check that it has all files under version control, and no others."""
    with tarfile.open(path) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    if not (ROOT / ".git").exists():
        return
    tracked = {name for name in git_files() if (ROOT / name).exists()}
    new = git_files("--others", "--exclude-standard")
    assert not tracked - found, f"missing: {sorted(tracked - found)}"
    assert not found - tracked - new - {"PKG-INFO"}, sorted(found - tracked - new)


def git_files(*options: str) -> set[str]:
    """Return the paths that git lists."""
    listed = subprocess.run(
        ["git", "ls-files", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return set(listed.stdout.splitlines())


def build_wheel(python: Path, source: Path, folder: Path) -> Path:
    """Build the wheel from the source distribution alone, in an environment that pip makes."""
    # Dependencies that are compiled already are not compiled again.
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # The files of the archive have old times, so that cargo would not see changes of our crates.
    for fingerprint in (target / "release" / ".fingerprint").glob("rtit-*"):
        shutil.rmtree(fingerprint)
    for tag in (PORTABLE, LINUX):
        environment = {
            "MATURIN_PEP517_ARGS": f"--compatibility {tag}",
            "CARGO_TARGET_DIR": str(target),
        }
        try:
            run_command(
                python, "-m", "pip", "wheel", "--no-deps", "-w", folder, source, env=environment
            )
        except RuntimeError as problem:
            if tag == LINUX:
                raise
            print(f"no portable wheel can be built here:\n{problem}")
        else:
            break
    (path,) = folder.glob("*.whl")
    return path


def check_wheel(path: Path) -> None:
    """Check metadata, and that both libraries are stripped and need no newer glibc than the
    tag says.
    """
    with zipfile.ZipFile(path) as archive:
        libraries = {name: archive.read(name) for name in LIBRARIES}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        fields = message_from_bytes(archive.read(metadata))
    assert fields["Author"] == "rtit developers"
    assert any(url.startswith("Changelog, ") for url in fields.get_all("Project-URL", []))
    tag = re.search(r"manylinux_2_(\d+)", path.name)
    if tag is None:
        print(f"{path.name}: for machines like this one alone")
    for name, data in libraries.items():
        assert not section_names(data) & {".debug_info", ".symtab"}, name
        needed = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", data))
        assert tag is None or needed <= int(tag[1]), f"{name} needs glibc 2.{needed}: {path.name}"
        print(f"{name}: {len(data):,} bytes, glibc 2.{needed}")


def section_names(data: bytes) -> set[str]:
    """Return the names of the sections of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, strings = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQ", data, table + size * at) for at in range(count)]
    names = headers[strings][4]
    return {data[names + at[0] :].split(b"\0", 1)[0].decode() for at in headers}


@contextmanager
def bare_environment() -> Iterator[Path]:
    """Yield the Python of a temporary environment that has only pip."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        yield Path(folder) / "bin" / "python"


def check_installed(python: Path) -> None:
    """Run the README's commands and Python with the installed package."""
    with tempfile.TemporaryDirectory() as folder:
        add_examples(Path(folder))
        run_commands(README, Path(folder), python.parent)
        for number, program in enumerate(python_blocks(README)):
            path = Path(folder) / f"{number}.py"
            path.write_text(program)
            run_command(python, "-I", path, cwd=Path(folder))


def main() -> int:
    """Build, install, and test the packages."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = build_source_distribution(folder)
    check_source_distribution(source)
    print(f"{source.name}: {source.stat().st_size:,} bytes")
    try:
        with bare_environment() as python:
            built = build_wheel(python, source, folder)
            print(f"{built.name}: {built.stat().st_size:,} bytes")
            check_wheel(built)
            run_command(python, "-m", "pip", "install", "--only-binary", ":all:", built)
            check_installed(python)
    except NoWheelError as problem:
        print(f"skipped: {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
