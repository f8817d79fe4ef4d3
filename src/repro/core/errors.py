"""The error for invalid input; its message names the wrong value and the valid choices."""


class InputError(ValueError):
    """The user gave an invalid value; raised before long work starts."""
