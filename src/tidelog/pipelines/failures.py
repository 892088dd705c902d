"""Turns the errors of Spark into one line for people."""

import re

from tidelog.pipelines.declarations import PipelineError, TemporaryError

TOPIC_REMEDY = (
    ". With dead_letters='TOPIC' in the declaration, the pipeline writes such records to this topic and continues"
)
HTTP_REMEDY = (
    ". To separate such records from the others, leave out schema, and parse the column 'value' in the pipeline's"
    " function"
)
"""If a source's parser finds a record that cannot be parsed, it raises an error in a worker. The error's text ends with
TOPIC_REMEDY or HTTP_REMEDY (see `topics` and `sources/http`)."""
RAISED = re.compile(
    rf"(pipeline [^\n]* cannot be parsed: [^\n]*?(?:{'|'.join(map(re.escape, (TOPIC_REMEDY, HTTP_REMEDY)))}))"
)
"""Such an error within the text of Spark's error."""
PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Loss|Batch|Partition|Requested)): (.+)$", re.MULTILINE)
"""The name and the text of a Python error, with or without a traceback. The name has one of the usual endings."""
TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?:[\w.<>]+\.)?(\w+)(?:: (.+))?$", re.MULTILINE
)
"""A Python traceback: indented lines, and after them the name and the text of the error, whatever its name is."""
MALFORMED_LINE = re.compile(
    r"reading file (?P<file>[^\n]+?)\.\s+SQLSTATE.*?\[MALFORMED_RECORD_IN_PARSING(?P<rest>.*)", re.DOTALL
)
"""Spark's error for a file of JSON or CSV with a line that does not fit the schema."""
OTHER_HEADER = re.compile(
    r"(?:CSV header does not conform to the schema\.|"
    r"Number of column in CSV header is not equal to number of fields in the schema:)\s+"
    r"(?P<difference>Header[^\n]*(?:\n Schema[^\n]*)?)\s*\n(?:[^\n]*\n)??CSV file: (?P<file>[^\n]+)"
)
"""Spark's error for a file of CSV whose first line has other columns than the schema, or another order."""
JAVA_ERROR = re.compile(
    r"^An error occurred while calling [^\n]*\n: [\w.$]+: ([^\n]+?)\s*(?:SQLSTATE: \w+)?$", re.MULTILINE
)
"""An error of Java that PySpark has no class for: the name and the text follow in the second line."""
CAUSED_BY = re.compile(r"^Caused by: [\w.$]+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
NO_SESSION = "[SESSION_OR_CONTEXT_NOT_EXISTS]"
NO_SESSION_HINT = (
    "a function that runs in Spark's workers has no Spark session, so StructType.fromDDL and the functions of"
    " pyspark.sql cannot be called in it: call them outside, and use the result in the function"
)


def cause_text(error: BaseException) -> str:
    """Return the cause of a failure as one line."""
    if isinstance(error, PipelineError):
        return str(error)
    text = str(error)
    if raised := RAISED.search(text):
        return raised[1].strip()
    if malformed := MALFORMED_LINE.search(text):
        causes = CAUSED_BY.findall(malformed["rest"])
        detail = f": {causes[-1].strip()}" if causes else ""
        return (
            f"{malformed['file']}: a line is malformed{detail}. Correct the file, or let Spark read such lines as rows"
            ' of nulls: file(..., options={"mode": "PERMISSIVE"})'
        )
    if header := OTHER_HEADER.search(text):
        difference = ", ".join(line.strip() for line in header["difference"].splitlines())
        return (
            f"{header['file']}: the header has other columns than the schema, or another order ({difference})."
            " Correct the file or the schema, or let Spark ignore the names in headers:"
            ' file(..., options={"header": True, "enforceSchema": True})'
        )
    python_errors = TRACEBACK.findall(text) or PYTHON_ERROR.findall(text)
    if python_errors:
        name, message = python_errors[-1]
        if message.startswith(NO_SESSION):
            return f"{name}: {message.strip()} ({NO_SESSION_HINT})"
        return f"{name}: {message.strip()}" if message.strip() else str(name)
    if java := JAVA_ERROR.search(text):
        causes = CAUSED_BY.findall(text)
        return f"{java[1]} {causes[-1].strip()}" if causes else java[1]
    first = first_line(text)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def first_line(text: str) -> str:
    """Return the first line that is not blank, without the blanks around it; empty if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def is_permanent(error: BaseException) -> bool:
    """Return whether another attempt would fail in the same way."""
    if isinstance(error, TemporaryError):
        return False
    text = str(error)
    return isinstance(error, PipelineError) or bool(
        RAISED.search(text) or MALFORMED_LINE.search(text) or OTHER_HEADER.search(text)
    )


def as_exception(error: BaseException) -> Exception:
    """Return the error itself if it is an Exception. Otherwise, for example after `sys.exit()`, return a PipelineError
    in its place, because code that handles failures catches only an Exception.
    """
    if isinstance(error, Exception):
        return error
    return PipelineError(f"{type(error).__name__} was raised (for example by sys.exit()): {error}")
