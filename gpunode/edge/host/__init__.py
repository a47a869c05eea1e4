"""Files and GPUs of this machine, or of an image's tree."""
