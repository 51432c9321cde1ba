"""Writes tensorflow_images.npz: TensorFlow's preparation of a picture. Run by hand.

    pip install tensorflow-cpu==2.21.0 && python tests/envs/libero/tensorflow_reference.py

The project itself does not need TensorFlow. The operations are those of openvla_utils.py in
experiments/robot of github.com/moojink/openvla-oft (MIT), at smaller sizes.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found,unused-ignore]

SIZE, RESIZED = 45, 32  # an odd one, so that colours end between pixels

random = np.random.default_rng(0)
squares = random.integers(0, 256, (9, 9, 3)).repeat(5, axis=0).repeat(5, axis=1)
picture = np.clip(squares + random.normal(0.0, 6.0, squares.shape), 0, 255).astype(np.uint8)
stored = tf.io.decode_image(tf.image.encode_jpeg(picture), expand_animations=False, dtype=tf.uint8)
filtered = tf.image.resize(stored, (RESIZED, RESIZED), method="lanczos3", antialias=True)
resized = tf.cast(tf.clip_by_value(tf.round(filtered), 0, 255), tf.uint8)
side = float(np.sqrt(0.9))
box = [[(1 - side) / 2, (1 - side) / 2, (1 + side) / 2, (1 + side) / 2]]
shares = tf.image.convert_image_dtype(resized, tf.float32)
[crop] = tf.image.crop_and_resize(shares[None], box, [0], (RESIZED, RESIZED))
cropped = tf.image.convert_image_dtype(tf.clip_by_value(crop, 0, 1), tf.uint8, saturate=True)
tensors = {"stored": stored, "resized": resized, "cropped": cropped}
arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
np.savez_compressed(Path(__file__).with_name("tensorflow_images.npz"), picture=picture, **arrays)
