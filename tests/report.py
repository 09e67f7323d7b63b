"""Prints what scripts/test found: `python report.py DIRECTORY`. The directory has

- `steps`: a line `STATUS SECONDS COMMAND` for each step,
- `junit.xml`, if nextest ran the tests, or `cargo-test`, what `cargo test` printed.

The names of tests that passed only when they were tried again are written to the file `flaky` there. The last line is `N passed, N failed`,
and the exit status is 1 if anything failed."""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree

SKIPPED = re.compile(r"^(\S+): skipped: (.*)$", re.MULTILINE)

directory = pathlib.Path(sys.argv[1])
passed, failed, flaky, skipped = [], [], [], {}

junit, text = directory / "junit.xml", directory / "cargo-test"
if junit.exists():
    for case in xml.etree.ElementTree.parse(junit).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("weightfs::")
        kinds = [child.tag for child in case]
        if "failure" in kinds or "error" in kinds:
            failed.append(name)
            continue
        passed.append(name)
        if "flakyFailure" in kinds:
            flaky.append(name)
        for output in case.iter("system-err"):
            skipped.update((name, reason) for _, reason in SKIPPED.findall(output.text or ""))
elif text.exists():
    output = text.read_text(errors="replace")
    skipped.update(SKIPPED.findall(output))
    program = "weightfs"
    for line in output.splitlines():
        if found := re.match(r" *Running (?:unittests )?(\S+)", line):
            path = pathlib.Path(found[1])
            program = path.parent.name if path.stem == "main" else path.stem
        elif found := re.match(r"test (\S+).* \.\.\. (?:.*\b)?(ok|FAILED)$", line):
            (passed if found[2] == "ok" else failed).append(f"{program}::{found[1]}")

tests_failed = bool(failed)
print("\n seconds  step")
for line in (directory / "steps").read_text().splitlines():
    status, seconds, command = line.split(" ", 2)
    print(f"{seconds:>8}  {command}")
    if command.split()[0] != "tests":
        (failed if int(status) else passed).append(command)
    elif int(status) and not tests_failed:
        failed.append("tests: they were not run to the end")

for reason, count in collections.Counter(skipped.values()).items():
    print(f"{count} tests skipped: {reason}")
for name in flaky:
    print(f"FLAKY {name}")
(directory / "flaky").write_text("".join(f"{name}\n" for name in flaky))
for name in failed:
    print(f"FAILED {name}")
print(f"{len(passed) - len(skipped)} passed, {len(failed)} failed")
sys.exit(bool(failed))
