"""What a user is told when something fails: what went wrong, where, and what to do."""

import errno

from sphere.errors import UserError

DEBUG = "SPHERE_DEBUG"
"""The variable of the environment that shows where an error happened."""
REMEDIES = {
    errno.ENOSPC: "make room on the disk; what was saved is whole, so continue with sphere resume",
    errno.EDQUOT: "make room in your quota; what was saved is whole, so continue with sphere resume",
    errno.ENOENT: "check the path",
    errno.EEXIST: "choose another path",
    errno.EISDIR: "name a file, not a directory",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EROFS: "choose a path that can be written to",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EMFILE: "allow more open files (ulimit -n), or train fewer runs at once",
}
"""What to do about an error of the operating system."""


def in_a_sentence(error: Exception) -> str:
    """What went wrong, where, and what to do; where the code did not foresee it, how to see more."""
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(error.errno, "check the path and its permissions")
        return f"{place}{error.strerror}; {remedy}"
    if isinstance(error, UserError | ValueError | OSError | RuntimeError | ImportError) and str(error):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({error}); choose smaller settings"
    return f"{type(error).__name__}: {str(error)[:300]}; if this is not clear, set {DEBUG}=1 to see where it happened"
