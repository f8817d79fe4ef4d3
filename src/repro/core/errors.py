"""The one error for bad input: it names the wrong value and the right choices."""


class InputError(ValueError):
    """A value that the user gave cannot work; raised before long work starts."""
