"""The one exception that is the user's to mend."""


class InputError(ValueError):
    """Bad input: one sentence that names the file, line or setting, what was expected and what to do.

    The command line prints it and exits with status 2; every other exception is a defect and keeps its traceback.
    """
