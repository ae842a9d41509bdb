"""The machine: devices, processes, files."""
