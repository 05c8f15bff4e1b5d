"""Writes lambda.h5: the configuration of a Keras model with a Lambda layer, as Keras 2 stores it. No weights."""
import json

import h5py

config = {"class_name": "Sequential", "config": {"name": "m", "layers": [{"class_name": "Lambda", "config": {
    "name": "l", "function": ["4wEAAAAAAAAAAAAAAAEAAAABAAAA", None, None], "function_type": "lambda"}}]}}
with h5py.File("lambda.h5", "w") as file:
    file.attrs["model_config"] = json.dumps(config)
