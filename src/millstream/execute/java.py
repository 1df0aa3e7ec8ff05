"""A Java that Spark can run on: found, or an error that says how to get one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from millstream.errors import Condition, MachineError

OLDEST = 17
WELL_KNOWN = "/usr/lib/jvm"


def find() -> str | None:
    """The JAVA_HOME to use, or None if `java` on the PATH will do; raises if there is no Java 17+."""
    for home in _homes():
        java = Path(home) / "bin" / "java"
        if java.exists() and (version(str(java)) or 0) >= OLDEST:
            return home
    on_path = shutil.which("java")
    if not os.environ.get("JAVA_HOME") and on_path and (version(on_path) or 0) >= OLDEST:
        return None
    raise MachineError(
        Condition.JAVA_MISSING,
        f"Spark needs Java {OLDEST} or newer, and none was found",
        hint="Install one, e.g. `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
        "`dnf install java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` (macOS), "
        "or point JAVA_HOME at one.",
    )


def _homes() -> list[str]:
    given = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []
    if not given and shutil.which("java"):
        return []
    found = sorted(str(p) for p in Path(WELL_KNOWN).glob("*") if p.is_dir())
    return given + found


def version(java: str) -> int | None:
    """The major version that this Java program reports, or None if it does not run."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match[1]) if match else None
