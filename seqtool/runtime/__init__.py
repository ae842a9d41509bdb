"""The machine: devices, precision, processes, files and the network."""
