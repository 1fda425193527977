"""The one kind of error that a user can mend: bad data, bad config, a run that does not fit."""


class UserError(ValueError):
    """Its text says what is wrong, where, with which value, and what to do; jobs print it without a traceback."""
