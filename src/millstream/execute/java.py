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
    given = os.environ.get("JAVA_HOME")
    if given and _is_good(f"{given}/bin/java"):
        return given
    on_path = shutil.which("java")
    if on_path and not given and _is_good(on_path):
        return None
    for home in sorted(Path(WELL_KNOWN).glob("*")):
        if _is_good(f"{home}/bin/java"):
            return str(home)
    raise MachineError(
        Condition.JAVA_MISSING,
        f"Spark needs Java {OLDEST} or newer, and none was found",
        hint="Install one, e.g. `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
        "`dnf install java-17-openjdk-headless` (Fedora) or `brew install openjdk@17` (macOS), "
        "or point JAVA_HOME at one.",
    )


def _is_good(java: str) -> bool:
    return Path(java).exists() and (version(java) or 0) >= OLDEST


def version(java: str) -> int | None:
    """The major version that this Java program reports, or None if it does not run."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match[1]) if match else None
