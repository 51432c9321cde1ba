"""Ray's error messages, which take many lines, in one."""


def in_a_line(error: BaseException) -> str:
    """The cause that Ray names, without the list of other possible causes."""
    said, _, _ = " ".join(str(error).split()).partition(" Some common causes include")
    return said.rpartition("The actor is dead because ")[2]
