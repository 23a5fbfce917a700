"""Files of a multipart form."""

import logging
from typing import Final

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from inference.engine.interface import InputError

MOST_FILES: Final = 256

# What it would log is in the answer.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def files_of(body: bytes, content_type: str) -> list[tuple[str, bytes]]:
    """Names and contents of the files, in their order. Raises InputError."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise InputError("Content-Type has no boundary: multipart/form-data needs one")
    if body and b"--" + boundary + b"--" not in body:
        raise InputError("the form has no end: its last boundary is missing")
    files: list[tuple[str, bytes]] = []

    def on_field(field: Field) -> None:
        del field

    def on_file(file: File) -> None:
        if len(files) == MOST_FILES:
            raise InputError(f"the form has more than {MOST_FILES} files")
        file.file_object.seek(0)
        name = (file.field_name or b"file").decode("utf-8", "replace")[:80]
        files.append((name, file.file_object.read()))

    # In memory: the whole body is there already, and nothing is to be written to a disk.
    config = {"MAX_MEMORY_FILE_SIZE": len(body) + 1, "UPLOAD_ERROR_ON_BAD_CTE": True}
    try:
        parser = FormParser(
            "multipart/form-data", on_field, on_file, boundary=boundary, config=config
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InputError(f"the form cannot be read: {error}") from None
    if not files:
        raise InputError("the form has no file: send images as files")
    return files
