"""Reads token files (docs/formats.md)."""

import struct


def documents_of(path):
    """Returns the documents of a token file, each a list of ids."""
    data = path.read_bytes()
    width, tokens, documents = struct.unpack_from("<I", data, 16)[0], *struct.unpack_from("<QQ", data, 24)
    ids = struct.unpack_from(f"<{tokens}{'H' if width == 2 else 'I'}", data, 88)
    begins = struct.unpack_from(f"<{documents}Q", data, 88 + (tokens * width + 7) // 8 * 8)
    return [list(ids[begin:end]) for begin, end in zip(begins, (*begins[1:], tokens))]
