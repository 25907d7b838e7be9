"""What coder nvcomp-ans needs: libnvcomp, from a wheel (``nvidia-libnvcomp-cu13``) or a system."""

from __future__ import annotations

from ciera import _native, wheels


def point_to_wheel() -> None:
    """Sets CIERA_NVCOMP_LIBRARY to an installed wheel's library, as ``wheels`` does."""
    wheels.point_to_wheel(
        "CIERA_NVCOMP_LIBRARY",
        "libnvcomp/lib64/libnvcomp.so.6",
        "libnvcomp/lib64/libnvcomp.so.5",
    )


def library() -> tuple[bool, str]:
    """Whether libnvcomp can be used: version and path, or why not."""
    point_to_wheel()
    return _native.nvcomp_support()
