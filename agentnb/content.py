"""Content of messages: pictures, PDF documents and sound, in one form for all models.

    from agentnb.content import Image, Pdf, message

    run = loop.start(message("What does the plot show?", Image.from_file("plot.png"), Pdf.from_file("paper.pdf")))

A tool may return them too, alone or in a list with texts. Each client translates a part into the form of its server. If
the API of a server has no form for a part, a text takes its place that names what was left out.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from agentnb.core.errors import UsageError

__all__ = ["Audio", "Data", "Image", "Link", "Part", "Pdf", "message"]


class Data(BaseModel):
    """Data that is part of the message: its media type, and its bytes as base64."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["base64"] = "base64"
    media_type: str
    data: str


class Link(BaseModel):
    """The address of data. The server of the model reads it; agentnb never does."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["url"] = "url"
    url: str


class Part(BaseModel):
    """A part of a message. `model_dump()` is the block that a recording has.

    Raises pydantic's ValidationError if the data is not of this kind.
    """

    model_config = ConfigDict(extra="forbid")
    media_types: ClassVar[dict[str, tuple[bytes, ...]]] = {}
    """The media types of this kind of part, each with the first bytes of such data, as patterns."""

    type: str
    source: Data | Link

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the part with the data of a file. Raises UsageError if the file is not of this kind."""
        return cls.from_bytes(Path(path).read_bytes(), name=os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str = "The data") -> Self:
        """Return the part with these bytes. name: what an error calls them. Raises UsageError as `from_file` does."""
        media_type = cls._media_type(data)
        if media_type is None:
            raise UsageError(f"{name} is none of {', '.join(cls.media_types)}, by its first bytes: {data[:12]!r}.")
        return cls.model_validate(
            {"source": {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}}
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the part at an address, which the server of the model reads. Raises UsageError if it is not one."""
        if not url.startswith(("https://", "http://")):
            raise UsageError(f"The address of a part begins with https:// or http://, not {url!r:.80}.")
        return cls.model_validate({"source": {"type": "url", "url": url}})

    @classmethod
    def _media_type(cls, data: bytes) -> str | None:
        return next(
            (kind for kind, begins in cls.media_types.items() if any(re.match(one, data, re.S) for one in begins)), None
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.source, Data):
            try:
                data = base64.b64decode(self.source.data, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("source.data is not base64") from None
            if self._media_type(data) != self.source.media_type:
                raise ValueError(f"source.data is not {self.source.media_type}, by its first bytes")
        return self


class Image(Part):
    """A picture: PNG, JPEG, GIF or WEBP."""

    media_types: ClassVar[dict[str, tuple[bytes, ...]]] = {
        "image/png": (b"\x89PNG\r\n\x1a\n",),
        "image/jpeg": (b"\xff\xd8\xff",),
        "image/gif": (b"GIF8",),
        "image/webp": (b"RIFF....WEBP",),
    }

    type: Literal["image"] = "image"


class Pdf(Part):
    """A PDF document."""

    media_types: ClassVar[dict[str, tuple[bytes, ...]]] = {"application/pdf": (b"%PDF-",)}

    type: Literal["document"] = "document"


class Audio(Part):
    """Sound: WAV or MP3."""

    media_types: ClassVar[dict[str, tuple[bytes, ...]]] = {
        "audio/wav": (b"RIFF....WAVE",),
        "audio/mp3": (b"ID3", b"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"),
    }

    type: Literal["audio"] = "audio"
    source: Data

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Raise UsageError: no server reads sound at an address."""
        raise UsageError("Sound must be a part of the message: Audio.from_file(path).")


_ROLES = ("user", "system", "developer", "assistant")


def message(*parts: str | Part, role: str = "user") -> dict[str, Any]:
    """Return a message with these texts and parts, in their order, for `start`, `steer` and `follow_up`.

    Raises UsageError for an argument that is neither a text nor a part, for a message without parts, and for an
    unknown role.
    """
    if role not in _ROLES:
        raise UsageError(f"The role of a message is one of {', '.join(_ROLES)}, not {role!r:.80}.")
    if not parts:
        raise UsageError('A message has at least one part: message("What does the plot show?", plot).')
    content = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        elif isinstance(part, Part):
            content.append(part.model_dump())
        else:
            raise UsageError(f"A message has texts, and parts such as Image.from_file(path), not {part!r:.80}.")
    return {"role": role, "content": content}
