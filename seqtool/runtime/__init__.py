"""Code close to hardware and operating system: devices, precision, processes, files and the network."""
