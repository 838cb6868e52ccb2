"""Checks of a sandbox: files, snapshots and resets."""

from __future__ import annotations

from agentgym.check.sandbox.subject import NOT_CLAIMED, SandboxSubject, demand, done, expect, refused
from agentgym.sandbox import FileInfo

_MIB = 1 << 20
_NAMES = ("a b", "-rf", "grüße", "new\nline", "'quoted\"", "$HOME", "*", "name." + "x" * 200)


def round_trip(subject: SandboxSubject) -> str:
    """Check that files are read back byte for byte, and that writing creates parent folders."""
    sandbox = subject.sandbox
    for path, data in (("empty", b""), ("a/b/c.bin", bytes(range(256)) * 100), ("text", "grüß\r\n".encode())):
        sandbox.write(path, data)
        expect(path, sandbox.read(path), data)
    sandbox.write("text", "shorter")
    expect("after writing it again", sandbox.read(f"{sandbox.workspace}/text"), b"shorter")
    expect("as code sees it", done(sandbox.exec(["cat", "text"])).stdout, "shorter")
    sandbox.exec("printf from-inside > made")
    expect("a file made inside", sandbox.read("made"), b"from-inside")
    return "byte for byte, in new folders too, both ways"


def odd_names(subject: SandboxSubject) -> str:
    """Check that file names may contain any character that the file system allows."""
    for name in _NAMES:
        subject.sandbox.write(name, name)
        expect(f"content of {name!r}", subject.sandbox.read(name), name.encode())
    expect("listed", [info.path for info in subject.sandbox.list()], sorted(_NAMES))
    return f"{len(_NAMES)} odd names"


def missing_files(subject: SandboxSubject) -> str:
    """Check that missing files and paths of the wrong kind raise errors of the right type."""
    sandbox = subject.sandbox
    sandbox.write("folder/file", "")
    refused(lambda: sandbox.read("missing"), "reading a missing file", "not_found")
    refused(lambda: sandbox.read("folder"), "reading a folder", "is_a_folder")
    refused(lambda: sandbox.write("folder", ""), "writing a folder", "is_a_folder")
    refused(lambda: sandbox.write("folder/file/below", ""), "writing below a file")
    refused(lambda: sandbox.list("missing"), "listing a missing folder", "not_found")
    refused(lambda: sandbox.list("folder/file"), "listing a file", "is_a_file")
    sandbox.exec("mkfifo pipe")
    refused(lambda: sandbox.read("pipe"), "reading a pipe that nobody writes to", "not_a_file")
    return "missing files, folders and pipes are refused with their kind"


def outside_paths(subject: SandboxSubject) -> str:
    """Check that no path leads out of the workspace, neither by ``..`` nor by links."""
    sandbox = subject.sandbox
    done(sandbox.exec("ln -s /etc/passwd link; ln -s / root; ln -s ../../../etc dots; ln -s loop loop"))
    for path in ("/etc/passwd", "../../etc/passwd", "link", "root/etc/passwd", "dots/passwd", "a/../../../etc/passwd"):
        refused(lambda path=path: sandbox.read(path), f"reading {path}", "outside_workspace")  # type: ignore[misc]
        refused(lambda path=path: sandbox.write(path, "x"), f"writing {path}", "outside_workspace")  # type: ignore[misc]
    refused(lambda: sandbox.list("root"), "listing a link to /", "outside_workspace")
    refused(lambda: sandbox.read("loop"), "reading a link to itself")
    expect("a link is listed as one", {info.kind for info in sandbox.list()}, {"link"})
    return "dots, absolute paths and links out of the workspace are refused"


def listing(subject: SandboxSubject) -> str:
    """Check that entries are sorted, with size and kind, and recursive on request."""
    sandbox = subject.sandbox
    sandbox.write("b/c", "123")
    sandbox.write("a", "1")
    folder, a = FileInfo(path="b", size_bytes=0, kind="folder"), FileInfo(path="a", size_bytes=1, kind="file")
    c = FileInfo(path="b/c", size_bytes=3, kind="file")
    expect("list()", sandbox.list(), (a, folder))
    expect("list(recursive=True)", sandbox.list(recursive=True), (a, folder, c))
    expect("list('b')", sandbox.list("b"), (c,))
    return "sorted, with sizes and kinds"


def large_files(subject: SandboxSubject) -> str:
    """Check that a file may be as large as the limit but no larger."""
    with subject.other(file_mb=4) as sandbox:
        data = bytes(range(256)) * (4 * _MIB // 256)
        sandbox.write("full", data)
        demand(sandbox.read("full") == data, "a file of 4 MiB does not come back as it was")
        refused(lambda: sandbox.write("over", data + b"x"), "a file one byte over the limit", "too_large")
        result = sandbox.exec("head -c 5000000 /dev/zero > inside")
        demand(not result.ok, "a program wrote a file over the limit")
        sizes = {info.path: info.size_bytes for info in sandbox.list()}
        demand(sizes["inside"] <= 4 * _MIB, f"a file of {sizes['inside']} bytes with a limit of {4 * _MIB}")
    return "4 MiB of 4 pass, a byte more does not"


def full_workspace(subject: SandboxSubject) -> str:
    """Check that the workspace holds no more than its limit, and that the sandbox survives a full workspace."""
    if not subject.claims("filesystem"):
        return NOT_CLAIMED.format("filesystem")
    with subject.other(workspace_mb=8, file_mb=64) as sandbox:
        result = sandbox.exec("head -c 20000000 /dev/zero > big")
        demand("No space left" in result.stderr, f"20 MB fit into a workspace of 8 MiB: {result}")
        refused(lambda: sandbox.write("more", b"x" * _MIB), "writing into a full workspace", "no_space")
        done(sandbox.exec("rm big"))
        sandbox.write("more", b"x" * _MIB)
        sandbox.exec("for i in 1 2 3 4 5 6 7 8 9; do mkdir d$i; (cd d$i && seq 1 2000 | xargs touch); done")
        sandbox.reset()
        sandbox.write("again", "fine")
    return "8 MiB and no more; usable again after removing some, and after a reset with many small files"


def snapshots(subject: SandboxSubject) -> str:
    """Check that restoring a snapshot brings back files, folders, links and modes, and removes later files."""
    sandbox = subject.sandbox
    sandbox.write("tree/script", "#!/bin/sh\necho ran")
    done(sandbox.exec("chmod 755 tree/script; mkdir -p tree/empty; ln -s script tree/link; ln -s /etc tree/out"))
    before, saved = sandbox.list(recursive=True), sandbox.snapshot()
    done(sandbox.exec("rm -r tree; echo new > new"))
    sandbox.restore(saved)
    expect("files", sandbox.list(recursive=True), before)
    expect("the script", done(sandbox.exec(["tree/link"])).stdout, "ran\n")
    sandbox.restore(saved)
    expect("restored twice", sandbox.list(recursive=True), before)
    with subject.other() as other:
        other.write("something", "else")
        other.restore(saved)
        expect("in another sandbox", other.list(recursive=True), before)
        expect("the script there", done(other.exec(["tree/script"])).stdout, "ran\n")
    return "files, folders, links and modes; also into another sandbox"


def empty_snapshot(subject: SandboxSubject) -> str:
    """Check that an empty workspace can be saved and restored."""
    saved = subject.sandbox.snapshot()
    subject.sandbox.write("file", "")
    subject.sandbox.restore(saved)
    expect("files", subject.sandbox.list(), ())
    return "empty again"


def fresh_start(subject: SandboxSubject) -> str:
    """Check that a reset leaves no file, even a hidden one, and no process or variable."""
    sandbox = subject.sandbox
    places = "workspace /tmp /dev/shm" if subject.claims("filesystem") else "workspace $TMPDIR"
    done(
        sandbox.exec(
            f"cd ..; for p in {places}; do cd $p 2>/dev/null || cd {sandbox.workspace}; "
            "mkdir -p .hidden/closed/deep; echo x > .hidden/closed/deep/f; ln -s /etc l; mkfifo p; "
            "chmod 000 .hidden/closed; done"
        )
    )
    sandbox.exec("chmod 000 .")
    sandbox.reset()
    expect("files after a reset", sandbox.list(recursive=True), ())
    expect("in temporary folders", done(sandbox.exec("ls -A $TMPDIR")).stdout, "")
    sandbox.write("works", "")
    expect("mode of the workspace", done(sandbox.exec("test -w . && echo yes")).stdout, "yes\n")
    return "hidden, closed and temporary files are gone"
