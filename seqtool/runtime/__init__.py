"""The machine: devices, precision, processes, files."""
