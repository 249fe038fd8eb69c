"""Arguments, values and errors as JSON and as text that every database stores.

Everything that goes into a row passes through here first, so that no content can make a statement
fail: inside a caller's transaction that would abort it, and at the end of an attempt it would lose
the outcome. Limits are parameters; nothing here reads a setting.
"""

from .decoding import decode, decode_call
from .encoding import MAX_DEPTH, MAX_INT_DIGITS, encode, encode_call
from .texts import ErrorText, describe_error, storable_text

__all__ = [
    "MAX_DEPTH",
    "MAX_INT_DIGITS",
    "ErrorText",
    "decode",
    "decode_call",
    "describe_error",
    "encode",
    "encode_call",
    "storable_text",
]
