"""The log of warnings and progress, which commands and the Python interface print to standard error."""

import logging

log = logging.getLogger("seqtool")
