"""The ways a run can refuse to go on, and whose mistake each is."""


class ConfigError(Exception):
    """The user's config is wrong; the message says where, what was given and what is allowed. Exit code 2."""


class TraceError(Exception):
    """A traffic file is wrong; the message names the file and the row. Exit code 2."""


class InvariantError(Exception):
    """Our mistake: an invariant of docs/design.md does not hold. The message says which, when and where."""


class EngineError(Exception):
    """A real engine did not start, or failed; the message says what it said. The run ends there, with exit code 1."""
